"""An HTTP server for a model."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import tensorflow as tf

from phalanx.errors import ConfigurationError, DataError
from phalanx.serving import rest
from phalanx.serving.batching import Batcher, OverloadedError
from phalanx.train.export.signatures import Signature

LOG = logging.getLogger("phalanx")

_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+))?(?::(?P<verb>\w+)|(?P<meta>/metadata))?"
)
_MAX_BYTES = 256 * 2**20
_IDLE_SECONDS = 60.0


@dataclass(frozen=True)
class BatchingConfig:
    """How requests are batched, and how long a response may take."""

    max_rows: int = 64
    wait_seconds: float = 0.0
    timeout_seconds: float = 60.0


@dataclass
class ServedModel:
    """A model under its name, with a batcher for each of its signatures."""

    name: str
    version: int
    signatures: Mapping[str, Signature]
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    batchers: dict[str, Batcher] = field(default_factory=dict)

    def start(self) -> None:
        for name, signature in self.signatures.items():
            self.batchers[name] = Batcher(
                signature.predict,
                max_rows=self.batching.max_rows if _can_split(signature) else 1,
                wait_seconds=self.batching.wait_seconds,
            )
            self.batchers[name].start()

    def stop(self) -> None:
        """Answer the requests that are waiting, then stop."""
        for batcher in self.batchers.values():
            batcher.stop()

    def predict(self, body: bytes) -> bytes:
        """Return the response to the body of a request."""
        request = rest.parse_request(body, self.signatures)
        outputs = self.batchers[request.signature].predict(
            request.arrays, request.rows, self.batching.timeout_seconds
        )
        return rest.format_response(request, outputs)


def _can_split(signature: Signature) -> bool:
    """Whether every output may have a row for each row of the inputs."""
    return not any(spec.shape[:1].is_fully_defined() for spec in signature.outputs.values())


class ModelServer(ThreadingHTTPServer):
    """Serves the REST API of TensorFlow Serving for one model. Port 0 takes any free port."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, model: ServedModel, host: str, port: int) -> None:
        self.model = model
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen at {host}:{port}: {error.strerror}. Choose another --port"
            ) from None

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def run(self) -> None:
        """Serve until `shut_down` is called."""
        self.model.start()
        try:
            self.serve_forever(poll_interval=0.2)
        finally:
            self.server_close()
            self.model.stop()


def shut_down(server: ModelServer) -> None:
    """End `ModelServer.run`, from any thread, also from the one that runs it."""
    threading.Thread(target=server.shutdown, daemon=True).start()


class _HTTPError(Exception):
    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "phalanx"
    timeout = _IDLE_SECONDS
    server: ModelServer
    # Buffered, so that headers and body go out together.
    wbufsize = -1

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        self._respond(self._get)

    def do_POST(self) -> None:
        self._respond(self._post)

    def _respond(self, handle: Callable[[], bytes]) -> None:
        status = HTTPStatus.OK
        try:
            body = handle()
        except _HTTPError as error:
            status, body = error.status, json.dumps({"error": str(error)}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _get(self) -> bytes:
        model, match = self.server.model, self._match_path()
        if match["verb"]:
            raise _HTTPError(HTTPStatus.METHOD_NOT_ALLOWED, f":{match['verb']} is for POST")
        if match["meta"]:
            return rest.format_metadata(model.name, model.version, model.signatures)
        return rest.format_status(model.version)

    def _post(self) -> bytes:
        body = self._read_body()
        if self._match_path()["verb"] != "predict":
            message = f"Malformed request: POST {self.path}; only :predict is supported"
            raise _HTTPError(HTTPStatus.BAD_REQUEST, message)
        try:
            return self.server.model.predict(body)
        except DataError as error:
            raise _HTTPError(HTTPStatus.BAD_REQUEST, str(error)) from error
        except tf.errors.InvalidArgumentError as error:
            raise _HTTPError(HTTPStatus.BAD_REQUEST, str(error.message)) from error
        except OverloadedError as error:
            raise _HTTPError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        except FutureTimeoutError as error:
            raise _HTTPError(HTTPStatus.GATEWAY_TIMEOUT, "the model took too long") from error
        except Exception as error:
            LOG.exception("a request failed")
            raise _HTTPError(HTTPStatus.INTERNAL_SERVER_ERROR, str(error)) from error

    def _match_path(self) -> re.Match[str]:
        model = self.server.model
        match = _PATH.fullmatch(self.path.partition("?")[0])
        if match is None:
            message = f"Malformed request: {self.command} {self.path}"
            raise _HTTPError(HTTPStatus.NOT_FOUND, message)
        version = match["version"]
        if match["name"] != model.name or (version and int(version) != model.version):
            wanted = f"{match['name']}{f' version {version}' if version else ''}"
            message = (
                f"Servable not found for request: {wanted}; this server has {model.name} version "
                f"{model.version}"
            )
            raise _HTTPError(HTTPStatus.NOT_FOUND, message)
        return match

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.close_connection = True
            raise _HTTPError(HTTPStatus.LENGTH_REQUIRED, "no Content-Length")
        if int(length) > _MAX_BYTES:
            self.close_connection = True
            message = f"the request is longer than {_MAX_BYTES} bytes"
            raise _HTTPError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        return self.rfile.read(int(length))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        LOG.debug("%s %s", self.address_string(), format % args)
