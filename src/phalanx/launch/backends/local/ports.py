"""Reserves ports, so that no other process takes them before the tasks bind them.

A reserved port belongs to a socket that is bound and does not listen. If both sockets set
SO_REUSEADDR, as TensorFlow, gRPC and most servers do, a task can still bind the port and listen on
it, also after a restart. The kernel does not give the port to a process that asks for any free one.
"""

import contextlib
import socket
import sys
from collections.abc import Iterator

from phalanx.errors import JobError
from phalanx.open_files import allow_more_open_files


@contextlib.contextmanager
def hold_ports(count: int, first: int | None = None) -> Iterator[tuple[int, ...]]:
    """Reserve `count` ports: any free ones, or those from `first` on."""
    if first is not None and first + count - 1 > 65535:
        raise JobError(
            f"{count} ports from {first} on do not fit below 65536: choose a lower --base-port"
        )
    # Each port needs a socket and, with `first`, a lock.
    allow_more_open_files(2 * count + 128)
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
            # Ignores connections of an earlier run in TIME_WAIT.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("::" if both else "", port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    except OSError as error:
        sock.close()
        raise _in_use(port, error) from None
    return sock


def _lock(port: int) -> contextlib.AbstractContextManager[object]:
    """Lock a chosen port, because two launchers could otherwise both reserve it."""
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
        return JobError(f"this machine has no free port ({error.strerror})")
    return JobError(
        f"port {port} cannot be used ({error.strerror}): choose another --base-port, "
        "or leave it out to get free ports"
    )
