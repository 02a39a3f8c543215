"""Ends connections to hosts that are cut off from the network.

Nothing closes the connections to such a host. By default, TCP sends again for a quarter of an hour,
and never looks at a connection on which this task only waits. TensorFlow has no limit of its own,
and no setting for one. So a thread finds the connections of this process to the other tasks, and
lets the kernel end those without an answer. TensorFlow then reports a lost peer, as if it had died.
"""

import contextlib
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.cluster import Cluster, Role, Task
from phalanx.cluster.spec import split_address

LOG = logging.getLogger("phalanx")

WORKER_SECONDS = 5.0
"""After how long a worker of a ps cluster without an answer is left out; it can come back."""
PEER_SECONDS = 60.0
"""After how long any other peer is lost, which the run does not survive without a restart."""

_POLL_SECONDS = 1.0
_PROBES = 3
_DESCRIPTORS = Path("/proc/self/fd")


@dataclass
class Connections:
    """The TCP connections of this process to the tasks of a cluster.

    Args:
        cluster: The cluster.
        task: The task of this process.
        has_ps: Whether the cluster has parameter servers, whose run goes on without a worker.
    """

    cluster: Cluster
    task: Task
    has_ps: bool
    _known: set[str] = field(default_factory=set)

    def watch(self) -> None:
        """Limit all connections, and those to come, as long as this process lives."""
        if not _DESCRIPTORS.exists() or not hasattr(socket, "TCP_USER_TIMEOUT"):
            LOG.debug("connections to hosts that are cut off have no limit on this system")
            return
        threading.Thread(target=self._watch, name="connections", daemon=True).start()

    def _watch(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                self.limit_new()
            time.sleep(_POLL_SECONDS)

    def limit_new(self) -> None:
        """Limit the connections that were opened since the last call."""
        found = set()
        for path in _DESCRIPTORS.iterdir():
            # Other threads close descriptors meanwhile.
            with contextlib.suppress(OSError):
                inode = str(path.readlink())
                if inode.startswith("socket:"):
                    found.add(inode)
                    if inode not in self._known and not self._limit(int(path.name)):
                        # It is not connected yet.
                        found.discard(inode)
        self._known = found

    def _limit(self, descriptor: int) -> bool:
        """Limit a socket, if it is a connection to another task; False to look at it again."""
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            if connection.type is not socket.SOCK_STREAM or connection.family not in (
                socket.AF_INET,
                socket.AF_INET6,
            ):
                return True
            if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return True
            try:
                port, peer = connection.getsockname()[1], connection.getpeername()
            except OSError:
                return False
            if (seconds := self._choose_seconds(port, peer[0], peer[1])) is not None:
                _limit_silence(connection, seconds)
            return True

    def _choose_seconds(self, port: int, host: str, peer_port: int) -> float | None:
        """Return the limit of a connection by its addresses; None if it leads to no other task."""
        own = split_address(self.cluster.addresses[self.task])[1]
        # Who connects to this task cannot be told by its address, but who is called can.
        peers = [] if port == own else self._find_tasks(host, peer_port)
        if port != own and not peers:
            return None
        is_to_worker = any(self._can_be_left_out(task) for task in (self.task, *peers))
        return WORKER_SECONDS if is_to_worker else PEER_SECONDS

    def _can_be_left_out(self, task: Task) -> bool:
        """Whether the run goes on without a task, and takes it back."""
        return self.has_ps and task.role is Role.WORKER and task != self.cluster.chief()

    def _find_tasks(self, host: str, port: int) -> list[Task]:
        """Return the tasks that listen at an address, or whose port is the same at least."""
        same_port = [
            (task, split_address(address)[0])
            for task, address in self.cluster.addresses.items()
            if split_address(address)[1] == port and task != self.task
        ]
        exact = [task for task, name in same_port if host in _resolve(name)]
        return exact or [task for task, _ in same_port]


_resolved: dict[str, set[str]] = {}


def _resolve(name: str) -> set[str]:
    """Return the addresses of a host, also as IPv6 writes those of IPv4."""
    if name not in _resolved:
        try:
            found = {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
        except (OSError, UnicodeError):
            return set()
        _resolved[name] = found | {f"::ffff:{address}" for address in found if "." in address}
    return _resolved[name]


def _limit_silence(connection: socket.socket, seconds: float) -> None:
    """Let the kernel end a connection whose other end acknowledges nothing for so long."""
    idle = max(1, int(seconds / 2))
    interval = max(1, int((seconds - idle) / _PROBES))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
