"""Free ports that nobody else takes between choosing them and a task's binding them.

A port is held by a socket that is bound and does not listen. With SO_REUSEADDR on both sides, which
TensorFlow, gRPC and most servers set, a task can bind and listen on it all the same, again after a
restart too; the kernel gives it to nobody who asks for just any port.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator

from phalanx.errors import JobError
from phalanx.open_files import allow_open_files


@contextlib.contextmanager
def hold_ports(count: int, first: int | None = None) -> Iterator[tuple[int, ...]]:
    """Hold `count` ports: any free ones, or those from `first` on."""
    if first is not None and first + count - 1 > 65535:
        raise JobError(
            f"{count} ports from {first} on do not fit below 65536: choose a lower --base-port"
        )
    # A socket and, for a port that was chosen, its lock.
    allow_open_files(2 * count + 128)
    with contextlib.ExitStack() as held:
        ports = []
        for number in range(count):
            if first is not None:
                held.enter_context(_lock(first + number))
            sock = held.enter_context(_bind(0 if first is None else first + number))
            ports.append(sock.getsockname()[1])
        yield tuple(ports)


def _bind(port: int) -> socket.socket:
    both = socket.has_dualstack_ipv6()
    sock = socket.socket(socket.AF_INET6 if both else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if both:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if port:
            # A connection of an earlier run that lingers in the kernel is not in the way.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("::" if both else "", port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError as error:
        sock.close()
        raise _in_use(port, error) from None
    return sock


def _lock(port: int) -> contextlib.AbstractContextManager[object]:
    """Keep two launchers apart that were given the same ports, which they could both hold."""
    if sys.platform != "linux":
        return contextlib.nullcontext()
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        lock.bind(f"\0phalanx-port-{port}")
    except OSError as error:
        lock.close()
        raise _in_use(port, error) from None
    return lock


def _in_use(port: int, error: OSError) -> JobError:
    if not port:
        return JobError(f"no free port is left on this machine ({error.strerror})")
    return JobError(
        f"port {port} cannot be used ({error.strerror}): choose another --base-port, "
        "or leave it out to get free ports"
    )
