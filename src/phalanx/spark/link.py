"""What the driver and a task say to each other: lines of JSON on one connection.

The task sends its token, then its output and how it ended; the driver sends `end`, and `leave` once
everybody has ended. No code is ever sent here: functions and results travel with Spark.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from typing import Any, Self

from phalanx.errors import LaunchError

_CONNECT_SECONDS = 30.0
_LONGEST = 1 << 24

Message = dict[str, Any]


class Link:
    """One end of a connection; every thread may send."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lines = sock.makefile("rb")
        self._lock = threading.Lock()

    @classmethod
    def connect(cls, host: str, port: int) -> Link:
        """The task's end."""
        try:
            sock = socket.create_connection((host, port), _CONNECT_SECONDS)
        except OSError as error:
            raise LaunchError(
                f"the driver cannot be reached at {host}:{port} ({error}): let executors connect "
                "to it, on a port of your choice if need be (driver_port=...)"
            ) from None
        sock.settimeout(None)
        # A driver whose machine is gone says nothing any more: the system finds out in two minutes.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6)
        return cls(sock)

    def send(self, **message: Any) -> None:
        """Say something; whoever is gone does not hear it."""
        text = json.dumps(message).encode() + b"\n"
        with self._lock, contextlib.suppress(OSError):
            self._sock.sendall(text)

    def receive(self, seconds: float | None = None) -> Message | None:
        """What the other end says next; None if it is gone, or silent for so long."""
        try:
            self._sock.settimeout(seconds)
            line = self._lines.readline(_LONGEST)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        """End it for both."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._lines.close()
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
