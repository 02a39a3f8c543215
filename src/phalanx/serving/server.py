"""TensorFlow Serving's REST API for one model, on uvicorn."""

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn

from phalanx.errors import ConfigurationError
from phalanx.serving.access import Access
from phalanx.serving.application import Application, Limits, OnAnswer
from phalanx.serving.batcher import ServedModel
from phalanx.serving.protocol import make_protocol

_KEEP_ALIVE_SECONDS = 60
_BACKLOG = 1024


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate and its key, which make the server speak HTTPS."""

    certificate: str
    key: str


class ModelServer:
    """Serves one model. Port 0 takes any free port.

    Args:
        model: The model.
        host: The address to listen on.
        port: The port to listen on.
        access: Who may call the model; by default everyone who can reach the address.
        limits: How much a request, and all of them together, may take.
        certificate: For HTTPS.
        on_answer: Called after each request with the status and the seconds that it took.
    """

    def __init__(
        self,
        model: ServedModel,
        host: str,
        port: int,
        *,
        access: Access | None = None,
        limits: Limits | None = None,
        certificate: Certificate | None = None,
        on_answer: OnAnswer | None = None,
    ) -> None:
        self.model = model
        limits = limits or Limits()
        self._application = Application(model, access or Access(host), limits, on_answer)
        config = uvicorn.Config(
            self._application,
            http=make_protocol(limits),
            ws="none",
            lifespan="off",
            loop="asyncio",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=round(limits.seconds) + 1,
            backlog=_BACKLOG,
            ssl_certfile=certificate.certificate if certificate else None,
            ssl_keyfile=certificate.key if certificate else None,
            # Without one, OpenSSL would ask the terminal for that of an encrypted key.
            ssl_keyfile_password="none" if certificate else None,
        )
        try:
            config.load()
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"the certificate cannot be used: {error}. Give PEM files that belong together "
                "with --tls-cert and --tls-key, the key without a password"
            ) from None
        self._server = _Server(config)
        self._socket = _listen(host, port, limits.connections)

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def run(self) -> None:
        """Serve until `shut_down` is called, then answer the requests that are in flight."""
        self.model.start()
        try:
            asyncio.run(self._server.serve([self._socket]))
        finally:
            self._socket.close()
            self._application.close()
            self.model.stop()

    def shut_down(self) -> None:
        """End `run`, from any thread or signal handler."""
        self._server.should_exit = True


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the command: uvicorn would raise them again at the end."""
        yield


class _LimitedSocket(socket.socket):
    """A listening socket that closes connections beyond a limit.

    The protocol of a connection with TLS learns of it only after the handshake, so that any number
    of clients that never send a byte would be held until then.
    """

    def __init__(self, listening: socket.socket, most: int) -> None:
        super().__init__(fileno=listening.detach())
        self._most = most
        self._accepted: set[socket.socket] = set()

    def accept(self) -> tuple[socket.socket, Any]:
        connection, address = super().accept()
        self._accepted = {each for each in self._accepted if each.fileno() >= 0}
        if len(self._accepted) >= self._most:
            connection.close()
            # The event loop takes it for a client that has left.
            raise ConnectionAbortedError
        self._accepted.add(connection)
        return connection, address


def _listen(host: str, port: int, most: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        server = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        return _LimitedSocket(server, most)
    except OSError as error:
        reason = re.sub(r"^\[Errno .*?\] ", "", str(error.strerror or error))
        raise ConfigurationError(
            f"cannot listen at {host}:{port}: {reason}. Choose another --port"
        ) from None
