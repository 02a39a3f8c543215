"""The REST API of TensorFlow Serving as an ASGI application."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

import tensorflow as tf

from phalanx.errors import DataError
from phalanx.serving import rest
from phalanx.serving.access import Access
from phalanx.serving.batcher import OverloadedError, ServedModel

LOG = logging.getLogger("phalanx")

_PATH = re.compile(
    r"/v1/models/(?P<name>[^/:]+)(?:/versions/(?P<version>\d{1,18}))?"
    r"(?::(?P<verb>\w{1,20})|(?P<meta>/metadata))?",
    re.ASCII,
)
_LONGEST_REASON = 2000
_SMALL_BYTES = 64 << 10
_BLOCK_BYTES = 256 << 10
_PARSERS = 2

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Result = TypeVar("Result")
OnAnswer = Callable[[int, float], None]
"""Called after each request with the status and the seconds that it took."""


@dataclass(frozen=True)
class Limits:
    """How much a request may take, and all requests together.

    Attributes:
        body_bytes: The longest body.
        all_bytes: The bodies of all requests that are being read or answered.
        response_bytes: All responses that their clients have not taken yet.
        connections: The most connections at a time; further ones are closed.
        seconds: From the first byte of a request to its answer.
    """

    body_bytes: int = 16 << 20
    all_bytes: int = 128 << 20
    response_bytes: int = 256 << 20
    connections: int = 512
    seconds: float = 60.0


class _HTTPError(Exception):
    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Application:
    """Answers requests. Large bodies are parsed in a few threads, and the model has its own."""

    def __init__(
        self,
        model: ServedModel,
        access: Access,
        limits: Limits,
        on_answer: OnAnswer | None = None,
    ) -> None:
        self._model, self._access, self._limits = model, access, limits
        self._on_answer = on_answer
        self._bytes_held = 0
        self._response_bytes_held = 0
        self._parsers = ThreadPoolExecutor(_PARSERS, "parser")

    def close(self) -> None:
        self._parsers.shutdown()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Request(scope, receive)
        began = time.perf_counter()
        status = HTTPStatus.OK
        try:
            async with asyncio.timeout(self._limits.seconds):
                body = await self._answer(request)
            if self._response_bytes_held + len(body) > (most := self._limits.response_bytes):
                message = f"all responses together are longer than {most} bytes"
                raise _HTTPError(HTTPStatus.SERVICE_UNAVAILABLE, message)
        except _HTTPError as error:
            status, body = error.status, _format_error(str(error))
        except TimeoutError:
            status = HTTPStatus.GATEWAY_TIMEOUT if request.is_read else HTTPStatus.REQUEST_TIMEOUT
            slow = "the model took too long" if request.is_read else "the request took too long"
            body = _format_error(slow)
        finally:
            self._bytes_held -= request.bytes_held
        self._response_bytes_held += len(body)
        try:
            await _respond(send, request, status, body)
        finally:
            self._response_bytes_held -= len(body)
        if self._on_answer is not None:
            self._on_answer(int(status), time.perf_counter() - began)

    async def _answer(self, request: "_Request") -> bytes:
        self._check_access(request)
        if request.method in ("GET", "HEAD"):
            return self._get(request)
        if request.method != "POST":
            raise _HTTPError(HTTPStatus.METHOD_NOT_ALLOWED, f"{request.method} is not supported")
        match = self._match_path(request)
        body = await self._read_body(request)
        if match["verb"] != "predict":
            message = f"Malformed request: POST {request.path}; only :predict is supported"
            raise _HTTPError(HTTPStatus.BAD_REQUEST, message)
        try:
            return await self._predict(body)
        except DataError as error:
            raise _HTTPError(HTTPStatus.BAD_REQUEST, str(error)) from error
        except tf.errors.InvalidArgumentError as error:
            raise _HTTPError(HTTPStatus.BAD_REQUEST, str(error.message)) from error
        except OverloadedError as error:
            raise _HTTPError(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        except Exception as error:
            LOG.exception("a request failed")
            message = "the model failed; see the log of the server"
            raise _HTTPError(HTTPStatus.INTERNAL_SERVER_ERROR, message) from error

    async def _predict(self, body: bytes) -> bytes:
        model = self._model
        request = await self._run(len(body), rest.parse_request, body, model.signatures)
        outputs = await asyncio.wrap_future(model.submit(request))
        size = sum(value.nbytes for value in outputs.values())
        return await self._run(size, rest.format_response, request, outputs)

    async def _run(self, size: int, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function here if it is quick, and otherwise in a thread."""
        if size <= _SMALL_BYTES:
            return function(*arguments)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._parsers, function, *arguments)

    def _check_access(self, request: "_Request") -> None:
        hosts = request.headers("host")
        if len(hosts) > 1 or (not hosts and request.needs_host):
            raise _HTTPError(HTTPStatus.BAD_REQUEST, "the request needs one header Host")
        if hosts and not self._access.allows_name(hosts[0]):
            message = f"this server is not called {hosts[0]!r}: add --allow-host if it is"
            raise _HTTPError(HTTPStatus.MISDIRECTED_REQUEST, message)
        for origin in request.headers("origin"):
            if not self._access.allows_origin(origin, hosts[0] if hosts else ""):
                message = f"pages of {origin!r} may not call this server: add --allow-host"
                raise _HTTPError(HTTPStatus.FORBIDDEN, message)
        tokens = request.headers("authorization")
        if not self._access.allows_token(tokens[0] if len(tokens) == 1 else ""):
            message = "this server needs the header Authorization: Bearer TOKEN"
            raise _HTTPError(HTTPStatus.UNAUTHORIZED, message)

    def _get(self, request: "_Request") -> bytes:
        model, match = self._model, self._match_path(request)
        if match["verb"]:
            raise _HTTPError(HTTPStatus.METHOD_NOT_ALLOWED, f":{match['verb']} is for POST")
        if match["meta"]:
            return rest.format_metadata(model.name, model.version, model.signatures)
        return rest.format_status(model.version)

    def _match_path(self, request: "_Request") -> re.Match[str]:
        model, match = self._model, _PATH.fullmatch(request.path)
        if match is None:
            message = f"Malformed request: {request.method} {request.path}"
            raise _HTTPError(HTTPStatus.NOT_FOUND, message)
        version = match["version"]
        if match["name"] != model.name or (version and int(version) != model.version):
            wanted = f"{match['name']}{f' version {version}' if version else ''}"
            served = f"this server has {model.name} version {model.version}"
            message = f"Servable not found for request: {wanted}; {served}"
            raise _HTTPError(HTTPStatus.NOT_FOUND, message)
        return match

    async def _read_body(self, request: "_Request") -> bytes:
        most = self._limits.body_bytes
        too_long = f"the request is longer than {most} bytes"
        if request.length > most:
            raise _HTTPError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, too_long)
        blocks: list[bytes] = []
        while not request.is_read:
            block = await request.read_block()
            blocks.append(block)
            self._bytes_held += len(block)
            request.bytes_held += len(block)
            if request.bytes_held > most:
                raise _HTTPError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, too_long)
            if self._bytes_held > self._limits.all_bytes:
                message = f"all requests together are longer than {self._limits.all_bytes} bytes"
                raise _HTTPError(HTTPStatus.SERVICE_UNAVAILABLE, message)
        return b"".join(blocks)


class _Request:
    """A request whose body may not have been read yet."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.needs_host = scope["http_version"] != "1.0"
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        lengths = self.headers("content-length")
        # The parser has refused lengths that are no numbers, or contradict each other.
        self.length = int(lengths[0]) if lengths else 0
        self.is_read = not self.length and not self.headers("transfer-encoding")
        self.bytes_held = 0

    def headers(self, name: str) -> list[str]:
        wanted = name.encode()
        return [value.decode("latin-1") for key, value in self._headers if key == wanted]

    async def read_block(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise _HTTPError(HTTPStatus.BAD_REQUEST, "the client closed the connection")
        self.is_read = not message.get("more_body", False)
        block: bytes = message.get("body", b"")
        return block


async def _respond(send: Send, request: _Request, status: HTTPStatus, body: bytes) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    # What is left of a body must not be taken for the next request.
    if not request.is_read:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    # In blocks: each is sent only when the client has taken the one before.
    start, last = 0, len(body) - _BLOCK_BYTES
    while start < last:
        block = body[start : start + _BLOCK_BYTES]
        await send({"type": "http.response.body", "body": block, "more_body": True})
        start += _BLOCK_BYTES
    await send({"type": "http.response.body", "body": body[start:]})


def _format_error(reason: str) -> bytes:
    short = reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"
    return json.dumps({"error": short}).encode()
