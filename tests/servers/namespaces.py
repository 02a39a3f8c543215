"""Another host, as a network namespace with a link to this one; needs root."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Prints what happens to a connection: refused, closed by the server, or open.
_CONNECT = """
import socket, sys
try:
    sock = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
    # A gRPC server sends its settings at once; other servers wait for the client.
    sock.settimeout(float(sys.argv[3]))
    print("open" if sock.recv(1) else "closed")
except (TimeoutError, BlockingIOError):
    print("open")
except ConnectionRefusedError:
    print("refused")
except ConnectionError:
    print("closed")
"""


@dataclass(frozen=True)
class Namespace:
    name: str
    address: str
    host_address: str
    """The address of this host, as the namespace reaches it."""

    def command(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *command]

    def connect(self, address: str, port: int, seconds: float = 3.0) -> str:
        """Return `refused`, `closed` or `open`."""
        return connect(self.command(), address, port, seconds)


def connect(enter: list[str], address: str, port: int, seconds: float = 3.0) -> str:
    """Connect from where the command `enter` leads to; return `refused`, `closed` or `open`."""
    given = [*enter, sys.executable, "-c", _CONNECT, address, str(port), str(seconds)]
    done = subprocess.run(given, capture_output=True, text=True, timeout=240, check=True)
    return done.stdout.strip()


def why_not() -> str | None:
    """Return why namespaces cannot be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [each for each in ("ip", "ss") if not shutil.which(each)]
    return f"{', '.join(missing)} not installed (Debian: iproute2)" if missing else None


@contextlib.contextmanager
def namespace() -> Iterator[Namespace]:
    """Make a namespace with a /30 network of its own."""
    tag = secrets.token_hex(3)
    name, here, there = f"phalanx-{tag}", f"ph{tag}a", f"ph{tag}b"
    net = f"10.{128 + secrets.randbelow(100)}.{secrets.randbelow(256)}"
    first = 4 * secrets.randbelow(60)
    made = Namespace(name, f"{net}.{first + 2}", f"{net}.{first + 1}")
    _ip("netns", "add", name)
    try:
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        _ip("address", "add", f"{made.host_address}/30", "dev", here)
        _ip("link", "set", here, "up")
        _ip("-n", name, "address", "add", f"{made.address}/30", "dev", there)
        _ip("-n", name, "link", "set", there, "up")
        _ip("-n", name, "link", "set", "lo", "up")
        # All addresses of this host can be reached.
        _ip("-n", name, "route", "add", "default", "via", made.host_address)
        yield made
    finally:
        _ip("netns", "delete", name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=120)


def list_listeners(variable: str, value: str) -> dict[str, set[str]]:
    """Return the addresses on which processes with a variable listen, by PHALANX_TASK or pid."""
    done = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, timeout=120, check=True)
    found: dict[str, set[str]] = {}
    for line in done.stdout.splitlines():
        for part in line.split("pid=")[1:]:
            pid = part.partition(",")[0]
            environ = _read_environ(pid)
            if environ.get(variable) == value:
                found.setdefault(environ.get("PHALANX_TASK", pid), set()).add(line.split()[3])
    return found


def _read_environ(pid: str) -> dict[str, str]:
    try:
        text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(each.partition("=")[::2] for each in text.split("\0") if "=" in each)
