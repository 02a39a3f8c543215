"""The connection between the driver and a task: one JSON object per line.

The task sends its token, then its output and how it has ended. The driver sends `end` to end the
task, and `leave` once all tasks have ended. Functions and results travel with Spark, not here.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any, TypeAlias

from phalanx.errors import LaunchError

_CONNECT_SECONDS = 30.0
_MAX_LINE_BYTES = 1 << 24

TaskMessage: TypeAlias = dict[str, Any]


class Connection:
    """One end of a connection; every thread may send."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lines = sock.makefile("rb")
        self._lock = threading.Lock()

    @classmethod
    def connect(cls, host: str, port: int) -> Connection:
        """Connect a task to its driver."""
        try:
            sock = socket.create_connection((host, port), _CONNECT_SECONDS)
        except OSError as error:
            raise LaunchError(
                f"the driver cannot be reached at {host}:{port} ({error}): let executors connect "
                "to it, on a port of your choice if need be (driver_port=...)"
            ) from None
        sock.settimeout(None)
        # With these settings the system notices within two minutes that the driver's host is down.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)
        return cls(sock)

    def send(self, **message: object) -> None:
        """Send a message; a closed connection is no error."""
        text = json.dumps(message).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):
            self._sock.sendall(text)

    def receive(self, seconds: float | None = None) -> TaskMessage | None:
        """Return the next message; None if the connection is closed or silent for so long."""
        try:
            self._sock.settimeout(seconds)
            line = self._lines.readline(_MAX_LINE_BYTES)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._sock.close()
