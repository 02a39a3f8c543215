"""A network of its own, with DNS names, for each pod of a task."""

from __future__ import annotations

import random
import shutil
import subprocess
import uuid
from pathlib import Path

# Runs a command with this file as /etc/hosts.
_WITH_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'


class Networks:
    """Network namespaces on one bridge; without `isolated`, pods use the network of the machine.

    The machine is on the bridge, too, at the `gateway`. Its pods that are no tasks know the names
    of all tasks.
    """

    def __init__(self, directory: Path, isolated: bool) -> None:
        self._isolated = isolated
        self._run_id = uuid.uuid4().hex[:6]
        self._bridge = f"br{self._run_id}"
        self._hosts = directory / "hosts"
        self._names: set[str] = set()
        self._numbers: dict[str, int] = {}
        self.gateway = "127.0.0.1"
        if isolated:
            self._subnet = _find_subnet()
            self.gateway = f"{self._subnet}.254"
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("address", "add", f"{self.gateway}/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            self._let_through("--insert")
            self._write_hosts([])

    def enter(self, hostname: str, hosts: list[str]) -> list[str]:
        """Return the command that puts the process of a pod into its own network.

        `hosts` are the DNS names of all tasks that are known now; more may follow.
        """
        if not self._isolated:
            return []
        for each in hosts:
            self._numbers.setdefault(each.partition(".")[0], len(self._numbers) + 1)
        self._write_hosts(hosts)
        if hostname not in self._numbers:
            return ["unshare", "--mount", "sh", "-c", _WITH_HOSTS, str(self._hosts)]
        name = f"p{self._run_id}{self._numbers[hostname]}"
        if name not in self._names:
            self._make_network(name, self.find_address(hostname))
            self._write_hosts(hosts)
        return ["ip", "netns", "exec", name]

    def find_address(self, hostname: str) -> str:
        """Return the address of a pod."""
        if hostname not in self._numbers:
            return self.gateway
        return f"{self._subnet}.{self._numbers[hostname]}"

    def _make_network(self, name: str, address: str) -> None:
        self._names.add(name)
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "master", self._bridge, "up")
        _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def _write_hosts(self, hosts: list[str]) -> None:
        """Write the DNS names of a headless Service, also for the pods that already run.

        The files are mounted as /etc/hosts, so they are changed in place. A name is also known
        with the namespace of its Service.
        """
        lines = ["127.0.0.1 localhost\n"]
        for each in hosts:
            hostname, _, domain = each.partition(".")
            names = each if domain.endswith(".svc") else f"{each} {each}.default.svc"
            lines.append(f"{self.find_address(hostname)} {names}\n")
        folders = [Path("/etc/netns") / name for name in self._names]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        for file in (self._hosts, *(folder / "hosts" for folder in folders)):
            file.write_text("".join(lines))

    def _let_through(self, action: str) -> None:
        """Allow traffic through our bridges, which a Docker engine on this machine forbids."""
        if shutil.which("iptables"):
            rule = ["FORWARD", "-i", self._bridge, "-o", self._bridge, "-j", "ACCEPT"]
            subprocess.run(["iptables", action, *rule], check=False, timeout=120)

    def stop(self) -> None:
        for name in self._names:
            _ip("netns", "delete", name)
            (Path("/etc/netns") / name / "hosts").unlink()
            (Path("/etc/netns") / name).rmdir()
        if self._isolated:
            self._let_through("--delete")
            _ip("link", "delete", self._bridge)


def _find_subnet() -> str:
    """Return the first three numbers of a network that nothing on this machine uses.

    Addresses from 198.18.0.0 to 198.19.255.255 are for tests.
    """
    while True:
        number = random.randrange(512)
        subnet = f"198.{18 + number // 256}.{number % 256}"
        routes = subprocess.run(
            ["ip", "route", "show", f"{subnet}.0/24"], check=True, capture_output=True, timeout=120
        )
        if not routes.stdout.strip():
            return subnet


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=120)
