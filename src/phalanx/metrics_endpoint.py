"""An HTTP server for Prometheus: answers GET /metrics with the metrics of this process."""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from phalanx.errors import ConfigurationError
from phalanx.host_header import find_name, is_address

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

HOST_VARIABLE = "PHALANX_METRICS_HOST"
PORT_VARIABLE = "PHALANX_METRICS_PORT"

_SECONDS = 10.0
_MAX_CLIENTS = 8
_PRIVATE_DOMAINS = (".localhost", ".local", ".internal", ".svc")


class MetricsEndpoint:
    """Serves the metrics of a registry until `close`, from threads of its own.

    It accepts few clients at a time, and a client has limited time. The header Host must be an
    address, a name of this host, or a name that nobody can register: a page of a hostile site can
    make a browser call the address under a name of that site, and read the answer.

    Args:
        registry: The metrics.
        host: The address to listen on. `::` means all addresses, also those of IPv4.
        port: The port to listen on; 0 takes any free port.

    Raises:
        ConfigurationError: The address cannot be used.
    """

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        try:
            self._server = _Server(registry, host, port)
        except OSError as error:
            reason = re.sub(r"^\[Errno .*?\] ", "", str(error.strerror or error))
            raise ConfigurationError(
                f"metrics cannot be served at {host}:{port}: {reason}. Choose another "
                "--metrics-port or --metrics-host"
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="phalanx-metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def check_metrics_library() -> None:
    """Raise a ConfigurationError if the library of Prometheus is not installed."""
    try:
        import prometheus_client  # noqa: F401, PLC0415
    except ModuleNotFoundError:
        raise ConfigurationError(
            "metrics need prometheus_client: pip install 'phalanx[metrics]'"
        ) from None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, registry: CollectorRegistry, host: str, port: int) -> None:
        if host == "::" and not socket.has_dualstack_ipv6():
            host = "0.0.0.0"
        self.registry = registry
        self._free = threading.BoundedSemaphore(_MAX_CLIENTS)
        self._name = host.lower()
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        super().__init__((str(address[0]), port), _Handler)

    def is_called(self, header: str) -> bool:
        """Whether the value of a header Host names this server."""
        name = find_name(header)
        # No public name server has a name without a dot, or in these domains.
        is_private = bool(name) and ("." not in name or name.endswith(_PRIVATE_DOMAINS))
        if is_private or is_address(name):
            return True
        return name in (self._name, socket.gethostname().lower(), self._full_name)

    @functools.cached_property
    def _full_name(self) -> str:
        """The name of this host with its domain, which may take a while to find."""
        return socket.getfqdn().lower()

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6 and self.server_address[0] == "::":
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # HTTPServer would ask DNS for the name of this host, which may take long.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # A client that sends one byte at a time would never exceed the time of a single read.
        timer = threading.Timer(_SECONDS, _cut, (request,))
        timer.daemon = True
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that go away."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _SECONDS

    def do_GET(self) -> None:
        from prometheus_client.exposition import choose_encoder  # noqa: PLC0415

        if not self.server.is_called(self.headers.get("Host", "localhost")):
            self.send_error(421, "This server has another name, which --metrics-host can set")
            return
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "The metrics are at /metrics")
            return
        encode, kind = choose_encoder(self.headers.get("Accept", ""))
        body = encode(self.server.registry)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "phalanx"

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def _cut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
