"""An HTTP server for a model, with one call of the model for requests that arrive together."""

import json
import logging
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError, DataError
from phalanx.serving import rest
from phalanx.train.export.signatures import Signature
from phalanx.train.types import NamedArrays

LOG = logging.getLogger("phalanx")

_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d+))?(?::(?P<verb>\w+)|(?P<meta>/metadata))?"
)
_MAX_BYTES = 256 * 2**20
_IDLE_SECONDS = 60.0


class OverloadedError(Exception):
    """Too many requests are waiting."""


@dataclass(frozen=True)
class _Request:
    arrays: NamedArrays
    rows: int
    # Only arrays of the same dtypes and shapes can be concatenated.
    kind: tuple[object, ...]
    response: Future[NamedArrays] = field(default_factory=Future)


class Batcher:
    """Concatenates the rows of several requests and calls the model, in one thread.

    Requests queue up while the model is busy, so that batches grow with the load. A single request
    does not wait for others, unless `wait_seconds` is set.
    """

    def __init__(
        self,
        call: Callable[[NamedArrays], NamedArrays],
        *,
        max_rows: int = 64,
        wait_seconds: float = 0.0,
        max_waiting: int = 2000,
    ) -> None:
        self._call = call
        self._max_rows = max_rows
        self._wait_seconds = wait_seconds
        self._waiting: queue.Queue[_Request | None] = queue.Queue(max_waiting)
        self._next: _Request | None = None
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Answer the requests that are waiting, then stop."""
        self._waiting.put(None)
        self._thread.join()

    def predict(self, arrays: NamedArrays, rows: int, timeout: float) -> NamedArrays:
        kind = tuple((name, value.dtype, value.shape[1:]) for name, value in sorted(arrays.items()))
        request = _Request(arrays, rows, kind)
        try:
            self._waiting.put_nowait(request)
        except queue.Full:
            raise OverloadedError(f"{self._waiting.maxsize} requests are waiting already") from None
        return request.response.result(timeout)

    def _run(self) -> None:
        while (first := self._next or self._waiting.get()) is not None:
            self._next = None
            self._answer(self._gather(first))

    def _gather(self, first: _Request) -> list[_Request]:
        batch, rows = [first], first.rows
        deadline = time.monotonic() + self._wait_seconds
        while rows < self._max_rows:
            try:
                left = deadline - time.monotonic()
                other = self._waiting.get(left > 0, max(left, 0))
            except queue.Empty:
                break
            if other is None:
                self._waiting.put(None)
                break
            if other.kind != first.kind or rows + other.rows > self._max_rows:
                self._next = other
                break
            batch.append(other)
            rows += other.rows
        return batch

    def _answer(self, batch: list[_Request]) -> None:
        try:
            if len(batch) == 1:
                batch[0].response.set_result(self._call(batch[0].arrays))
                return
            names = batch[0].arrays
            outputs = self._call({n: np.concatenate([r.arrays[n] for r in batch]) for n in names})
            rows = sum(request.rows for request in batch)
            for name, value in outputs.items():
                if value.shape[:1] != (rows,):
                    raise ValueError(f"{name} has no row for each of {rows}: {value.shape}")
            start = 0
            for request in batch:
                end = start + request.rows
                request.response.set_result({n: value[start:end] for n, value in outputs.items()})
                start = end
        except Exception as error:
            if len(batch) == 1:
                batch[0].response.set_exception(error)
                return
            # One bad request fails the whole batch: answer each request alone.
            for request in batch:
                if not request.response.done():
                    self._answer([request])


@dataclass
class ServedModel:
    name: str
    version: int
    signatures: Mapping[str, Signature]
    max_rows: int = 64
    wait_seconds: float = 0.0
    timeout_seconds: float = 60.0
    batchers: dict[str, Batcher] = field(default_factory=dict)

    def start(self) -> None:
        for name, signature in self.signatures.items():
            rows, wait = self.max_rows if _can_split(signature) else 1, self.wait_seconds
            self.batchers[name] = Batcher(signature.predict, max_rows=rows, wait_seconds=wait)
            self.batchers[name].start()

    def stop(self) -> None:
        for batcher in self.batchers.values():
            batcher.stop()

    def predict(self, body: bytes) -> bytes:
        request = rest.parse_request(body, self.signatures)
        batcher = self.batchers[request.signature]
        outputs = batcher.predict(request.arrays, request.rows, self.timeout_seconds)
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
            reason = f"cannot listen at {host}:{port}: {error.strerror}"
            raise ConfigurationError(f"{reason}. Choose another --port") from None

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

    def shut_down(self) -> None:
        """End `run`, from any thread, also from the one that runs it."""
        threading.Thread(target=self.shutdown, daemon=True).start()


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
            served = f"this server has {model.name} version {model.version}"
            message = f"Servable not found for request: {wanted}; {served}"
            raise _HTTPError(HTTPStatus.NOT_FOUND, message)
        return match

    def _read_body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if length.isdecimal() and int(length) <= _MAX_BYTES:
            return self.rfile.read(int(length))
        self.close_connection = True
        if not length.isdecimal():
            raise _HTTPError(HTTPStatus.LENGTH_REQUIRED, "no Content-Length")
        message = f"the request is longer than {_MAX_BYTES} bytes"
        raise _HTTPError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        LOG.debug("%s %s", self.address_string(), format % args)
