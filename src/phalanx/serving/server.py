"""A small HTTP server in front of a model."""

from __future__ import annotations

import logging
import re
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.serving import rest
from phalanx.serving.batching import Arrays, Batcher, OverloadedError
from phalanx.train.export.signatures import Signature

LOG = logging.getLogger("phalanx")

_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+))?(?::(?P<verb>\w+)|(?P<meta>/metadata))?"
)
_LONGEST = 256 * 2**20
_IDLE_SECONDS = 60.0


@dataclass(frozen=True)
class Batching:
    """How requests are put together."""

    max_rows: int = 64
    wait_seconds: float = 0.0
    answer_seconds: float = 60.0


@dataclass
class ServedModel:
    """A model under its name, and a batcher for each of its signatures."""

    name: str
    version: int
    signatures: Mapping[str, Signature]
    batching: Batching = field(default_factory=Batching)
    batchers: dict[str, Batcher] = field(default_factory=dict)

    def start(self) -> None:
        """Answer from now on."""
        for name, signature in self.signatures.items():
            self.batchers[name] = Batcher(
                _caller(signature),
                max_rows=self.batching.max_rows if _has_rows(signature) else 1,
                wait_seconds=self.batching.wait_seconds,
            )
            self.batchers[name].start()

    def stop(self) -> None:
        """Answer what waits, then no more."""
        for batcher in self.batchers.values():
            batcher.stop()

    def predict(self, body: bytes) -> bytes:
        """The answer to the body of a request."""
        question = rest.read_question(body, self.signatures)
        outputs = self.batchers[question.signature].ask(
            question.arrays, question.rows, self.batching.answer_seconds
        )
        return rest.write_answer(question, outputs)


def _has_rows(signature: Signature) -> bool:
    """Can every output have a row for each of the inputs'? Otherwise answers cannot be cut up."""
    return not any(spec.shape[:1].is_fully_defined() for spec in signature.outputs.values())


def _caller(signature: Signature) -> Any:
    def call(arrays: Arrays) -> Arrays:
        outputs = signature.call(**{name: tf.constant(value) for name, value in arrays.items()})
        return {name: value.numpy() for name, value in outputs.items()}

    return call


class ModelServer(ThreadingHTTPServer):
    """Speaks TensorFlow Serving's REST API for one model. Port 0 takes any free port."""

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
        """Where it listens."""
        return int(self.server_address[1])

    def run(self) -> None:
        """Serve until `shutdown` is called from another thread."""
        self.model.start()
        try:
            self.serve_forever(poll_interval=0.2)
        finally:
            self.server_close()
            self.model.stop()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "phalanx"
    timeout = _IDLE_SECONDS
    server: ModelServer
    # A whole answer goes out in one piece.
    wbufsize = -1

    def setup(self) -> None:
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def do_GET(self) -> None:
        """State and metadata."""
        model = self.server.model
        match = self._find_model()
        if match is None:
            return
        if match["verb"]:
            self._answer(
                HTTPStatus.METHOD_NOT_ALLOWED, rest.describe_error(f":{match['verb']} is for POST")
            )
        elif match["meta"]:
            body = rest.describe_metadata(model.name, model.version, model.signatures)
            self._answer(HTTPStatus.OK, body)
        else:
            self._answer(HTTPStatus.OK, rest.describe_status(model.version))

    def do_POST(self) -> None:
        """Predictions."""
        body = self._read_body()
        if body is None:
            return
        match = self._find_model()
        if match is None:
            return
        if match["verb"] != "predict":
            message = f"Malformed request: POST {self.path}; only :predict is served here"
            self._answer(HTTPStatus.BAD_REQUEST, rest.describe_error(message))
            return
        status, answer = self._predict(body)
        self._answer(status, answer)

    def _predict(self, body: bytes) -> tuple[HTTPStatus, bytes]:
        try:
            return HTTPStatus.OK, self.server.model.predict(body)
        except rest.BadRequestError as error:
            return HTTPStatus.BAD_REQUEST, rest.describe_error(str(error))
        except tf.errors.InvalidArgumentError as error:
            return HTTPStatus.BAD_REQUEST, rest.describe_error(str(error.message))
        except OverloadedError as error:
            return HTTPStatus.SERVICE_UNAVAILABLE, rest.describe_error(str(error))
        except FutureTimeoutError:
            return HTTPStatus.GATEWAY_TIMEOUT, rest.describe_error("the model took too long")
        except Exception as error:
            LOG.exception("a request failed")
            return HTTPStatus.INTERNAL_SERVER_ERROR, rest.describe_error(str(error))

    def _find_model(self) -> re.Match[str] | None:
        model = self.server.model
        match = _PATH.fullmatch(self.path.partition("?")[0])
        if match is None:
            message = f"Malformed request: {self.command} {self.path}"
            self._answer(HTTPStatus.NOT_FOUND, rest.describe_error(message))
            return None
        version = match["version"]
        if match["name"] != model.name or (version and int(version) != model.version):
            asked = f"{match['name']}{f' version {version}' if version else ''}"
            message = (
                f"Servable not found for request: {asked}; here is {model.name} version "
                f"{model.version}"
            )
            self._answer(HTTPStatus.NOT_FOUND, rest.describe_error(message))
            return None
        return match

    def _read_body(self) -> bytes | None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.close_connection = True
            self._answer(HTTPStatus.LENGTH_REQUIRED, rest.describe_error("no Content-Length"))
            return None
        if int(length) > _LONGEST:
            self.close_connection = True
            message = f"the request is longer than {_LONGEST} bytes"
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, rest.describe_error(message))
            return None
        return self.rfile.read(int(length))

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Requests are logged only when somebody looks for them."""
        LOG.debug("%s %s", self.address_string(), format % args)


def shut_down(server: ModelServer) -> None:
    """End `run`, from any thread, the serving one too."""
    threading.Thread(target=server.shutdown, daemon=True).start()
