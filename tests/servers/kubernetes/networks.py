"""A network of its own, with DNS names, for each pod of a task."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from pathlib import Path


class Networks:
    """Network namespaces on one bridge; without `isolated`, pods use the network of the machine."""

    def __init__(self, isolated: bool) -> None:
        self._isolated = isolated
        self._run_id = uuid.uuid4().hex[:6]
        self._names: set[str] = set()
        self._numbers: dict[str, int] = {}

    def enter(self, hostname: str, hosts: list[str]) -> list[str]:
        """Return the command that puts the process of a pod into its own network.

        `hosts` are the DNS names of all tasks that are known now; more may follow.
        """
        if not self._isolated or hostname not in [each.partition(".")[0] for each in hosts]:
            return []
        for each in hosts:
            self._numbers.setdefault(each.partition(".")[0], len(self._numbers) + 1)
        name = f"p{self._run_id}{self._numbers[hostname]}"
        if name not in self._names:
            self._make_network(name, f"10.88.0.{self._numbers[hostname]}")
        self._write_hosts(hosts)
        return ["ip", "netns", "exec", name]

    def _make_network(self, name: str, address: str) -> None:
        self._names.add(name)
        bridge = f"br{self._run_id}"
        if len(self._names) == 1:
            _ip("link", "add", bridge, "type", "bridge")
            _ip("link", "set", bridge, "up")
            self._let_through("--insert")
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "master", bridge, "up")
        _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def _write_hosts(self, hosts: list[str]) -> None:
        """Write the DNS names of a headless Service, also for the pods that already run.

        `ip netns exec` mounts this file as /etc/hosts, so it is changed in place.
        """
        lines = [f"10.88.0.{self._numbers[each.partition('.')[0]]} {each}\n" for each in hosts]
        for name in self._names:
            file = Path(f"/etc/netns/{name}/hosts")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("127.0.0.1 localhost\n" + "".join(lines))

    def _let_through(self, action: str) -> None:
        """Allow traffic through our bridges, which a Docker engine on this machine forbids."""
        if shutil.which("iptables"):
            bridge = f"br{self._run_id}"
            rule = ["FORWARD", "-i", bridge, "-o", bridge, "-j", "ACCEPT"]
            subprocess.run(["iptables", action, *rule], check=False, timeout=120)

    def stop(self) -> None:
        for name in self._names:
            _ip("netns", "delete", name)
            (Path("/etc/netns") / name / "hosts").unlink()
            (Path("/etc/netns") / name).rmdir()
        if self._names:
            self._let_through("--delete")
            _ip("link", "delete", f"br{self._run_id}")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=120)
