"""The connection between the driver and a task: one JSON object per line.

The driver sends a challenge, and the task answers with its name and the HMAC of both, so that the
token itself is never sent. Then the task sends its output and how it has ended. The driver sends
`end` to end the task, and `leave` once all tasks have ended. Functions and results travel with
Spark, not here.
"""

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import threading
import time
from typing import Any, Self, TypeAlias

from phalanx.errors import LaunchError

_CONNECT_SECONDS = 30.0
_MAX_LINE_BYTES = 1 << 24
_MAX_GREETING_BYTES = 1024
_CHUNK_BYTES = 1 << 16

TaskMessage: TypeAlias = dict[str, Any]


class Connection:
    """One end of a connection; every thread may send."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._received = bytearray()
        self._lock = threading.Lock()

    @classmethod
    def connect(cls, host: str, port: int) -> Self:
        try:
            sock = socket.create_connection((host, port), _CONNECT_SECONDS)
        except OSError as error:
            what = f"the driver cannot be reached at {host}:{port} ({error})"
            fix = (
                "let executors connect to it, on a port of your choice if need be (driver_port=...)"
            )
            raise LaunchError(f"{what}: {fix}") from None
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

    def challenge(self, token: str, seconds: float) -> str | None:
        """Return the name of the task at the other end; None if it does not prove it in time."""
        nonce = secrets.token_hex(16)
        self.send(challenge=nonce)
        answer = self._receive(seconds, _MAX_GREETING_BYTES) or {}
        name, proof = answer.get("task"), answer.get("proof")
        if not isinstance(name, str) or not isinstance(proof, str):
            return None
        expected = _prove(token, nonce, name)
        return name if hmac.compare_digest(_encode(proof), expected.encode()) else None

    def answer(self, token: str, name: str) -> None:
        """Prove to the driver that this is a task of its job; LaunchError without a challenge."""
        message = self._receive(_CONNECT_SECONDS, _MAX_GREETING_BYTES) or {}
        nonce = message.get("challenge")
        if not isinstance(nonce, str):
            raise LaunchError("the driver does not answer: the job is over, or it is no driver")
        self.send(task=name, proof=_prove(token, nonce, name))

    def receive(self, seconds: float | None = None) -> TaskMessage | None:
        """Return the next message; None if the connection is closed, or it takes longer."""
        return self._receive(seconds, _MAX_LINE_BYTES)

    def _receive(self, seconds: float | None, limit: int) -> TaskMessage | None:
        """Return the next message of limited size, if the whole of it comes in time."""
        try:
            line = self._read_line(None if seconds is None else time.monotonic() + seconds, limit)
            message = json.loads(line)
        except (OSError, ValueError, RecursionError):
            return None
        return message if isinstance(message, dict) else None

    def _read_line(self, deadline: float | None, limit: int) -> bytes:
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            if searched > limit:
                raise ValueError("a line that is too long")
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError
            self._sock.settimeout(left)
            if not (chunk := self._sock.recv(_CHUNK_BYTES)):
                raise ConnectionError("closed")
            self._received += chunk
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()


def _prove(token: str, nonce: str, name: str) -> str:
    return hmac.new(token.encode(), _encode(f"{nonce} {name}"), hashlib.sha256).hexdigest()


def _encode(text: str) -> bytes:
    """Encode any text, even one that JSON allows and UTF-8 does not."""
    return text.encode(errors="surrogatepass")
