"""Hosts of their own for some tasks, as network namespaces behind a router that can cut them off.

    this machine -- router -- host of worker-0
                          \\-- host of worker-1

The router drops the packets of a host that is cut off. Nobody is told, as when a cable breaks.
"""

import contextlib
import itertools
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.cluster.spec import Task
from phalanx.errors import LaunchError

_SECONDS = 30.0
_PREFIX = "phalanx-chaos"
MAX_TASKS = 62
"""How many networks of four addresses a /24 has, without this machine's and the last one."""


@dataclass(frozen=True)
class Network:
    """The hosts of some tasks.

    Attributes:
        host: The address of this machine, at which those hosts reach it.
        addresses: The addresses of those hosts, by task.
        router: The namespace of the router.
    """

    host: str
    addresses: Mapping[Task, str]
    router: str

    def address_of(self, task: Task) -> str:
        """Return the address at which a task must listen."""
        return self.addresses.get(task, self.host)

    def command_of(self, task: Task) -> tuple[str, ...]:
        """Return what precedes the command of a task, so that it runs on its host."""
        if task not in self.addresses:
            return ()
        return ("ip", "netns", "exec", _name_host(self.router, task))

    def cut(self, task: Task, sends: bool = True, receives: bool = True) -> None:
        """Drop everything that a host sends, and that is sent to it; tell nobody."""
        for rule in self._rules(task, sends, receives):
            _ip("-n", self.router, *rule("add"))

    def heal(self, task: Task, sends: bool = True, receives: bool = True) -> None:
        """End a cut of the same kind."""
        for rule in self._rules(task, sends, receives):
            _ip("-n", self.router, *rule("delete"))

    def split(self, left: Sequence[Task], right: Sequence[Task], heal: bool = False) -> None:
        """Drop everything between hosts of one group and of another, or end that."""
        change = "delete" if heal else "add"
        for one, other in itertools.product(left, right):
            for source, target in ((one, other), (other, one)):
                route = ("from", self.addresses[source], "to", self.addresses[target])
                _ip("-n", self.router, "rule", change, *route, "blackhole", "priority", "1")

    def _rules(
        self, task: Task, sends: bool, receives: bool
    ) -> list[Callable[[str], tuple[str, ...]]]:
        host = self.addresses[task]
        rules: list[Callable[[str], tuple[str, ...]]] = []
        if receives:
            rules.append(lambda change: ("route", change, "blackhole", f"{host}/32"))
        if sends:
            rules.append(
                lambda change: ("rule", change, "from", host, "blackhole", "priority", "1")
            )
        return rules


def find_obstacle() -> str | None:
    """Return why tasks cannot have hosts of their own here; None if they can."""
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    if not shutil.which("ip"):
        return "the command `ip` is missing (Debian: apt install iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    return None


@contextlib.contextmanager
def open_network(tasks: Sequence[Task]) -> Iterator[Network]:
    """Give each of these tasks a host, until the end of the block.

    Raises:
        LaunchError: A namespace could not be made.
    """
    delete_abandoned()
    prefix = _find_free_prefix()
    router = f"{_PREFIX}-{os.getpid()}-{secrets.token_hex(2)}"
    link = f"phx{os.getpid() % 10**7}{secrets.token_hex(2)}"
    network = Network(
        f"{prefix}.1",
        {task: f"{prefix}.{4 * number + 6}" for number, task in enumerate(tasks[:MAX_TASKS])},
        router,
    )
    try:
        _ip("netns", "add", router)
        _ip("link", "add", link, "type", "veth", "peer", "name", "uplink", "netns", router)
        _ip("address", "add", f"{prefix}.1/30", "dev", link)
        _ip("link", "set", link, "up")
        _ip("-n", router, "address", "add", f"{prefix}.2/30", "dev", "uplink")
        _ip("-n", router, "link", "set", "uplink", "up")
        _run("ip", "netns", "exec", router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        _ip("route", "add", f"{prefix}.0/24", "via", f"{prefix}.2")
        for number, task in enumerate(network.addresses):
            _add_host(router, _name_host(router, task), prefix, number)
        yield network
    finally:
        _delete_namespaces(router)


def _add_host(router: str, name: str, prefix: str, number: int) -> None:
    first, link = 4 * number + 4, f"link{number}"
    _ip("netns", "add", name)
    _ip("-n", router, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
    _ip("-n", router, "address", "add", f"{prefix}.{first + 1}/30", "dev", link)
    _ip("-n", router, "link", "set", link, "up")
    _ip("-n", name, "address", "add", f"{prefix}.{first + 2}/30", "dev", "eth0")
    _ip("-n", name, "link", "set", "eth0", "up")
    _ip("-n", name, "link", "set", "lo", "up")
    _ip("-n", name, "route", "add", "default", "via", f"{prefix}.{first + 1}")


def _name_host(router: str, task: Task) -> str:
    return f"{router}-{task}"


def _find_free_prefix() -> str:
    """Return the first three numbers of a private network that this machine has no route to."""
    known = _ip("-4", "route", "show", "table", "all")
    for _ in range(100):
        prefix = f"10.{128 + secrets.randbelow(100)}.{secrets.randbelow(256)}"
        if f"{prefix}." not in known:
            return prefix
    raise LaunchError("no private network is free for the hosts of tasks")


def delete_abandoned() -> None:
    """Delete the namespaces of a `phalanx chaos` that was killed."""
    for name in _list_namespaces():
        found = re.match(rf"{_PREFIX}-(\d+)-", name)
        if found and not Path(f"/proc/{found[1]}").exists():
            _ip("netns", "delete", name)


def _delete_namespaces(router: str) -> None:
    for name in _list_namespaces():
        if name == router or name.startswith(f"{router}-"):
            _ip("netns", "delete", name)


def _list_namespaces() -> list[str]:
    return [line.split()[0] for line in _ip("netns", "list").splitlines() if line.strip()]


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LaunchError(f"`{' '.join(command)}` failed: {error}") from None
    if done.returncode:
        raise LaunchError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout
