"""Any request gets an answer of the API, and no request stops the server."""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.security.fuzzing import fuzz, vary

tf = pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")

from phalanx.errors import DataError  # noqa: E402
from phalanx.serving.application import Limits  # noqa: E402
from phalanx.serving.batcher import ServedModel  # noqa: E402
from phalanx.serving.rest import format_response, parse_request  # noqa: E402
from phalanx.serving.server import ModelServer  # noqa: E402
from phalanx.train.export.signatures import Signature  # noqa: E402

FLOATS = {"x": tf.TensorSpec([None, 2], tf.float32)}
SEVERAL = {"s": tf.TensorSpec([None], tf.string), "n": tf.TensorSpec([None], tf.int32)}
SIGNATURES = {
    "serving_default": Signature(FLOATS, FLOATS, lambda x: {"x": x}),
    "several": Signature(SEVERAL, SEVERAL, lambda **inputs: inputs),
}

names = st.sampled_from(["instances", "inputs", "signature_name", "x", "s", "n", "b64", "several"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-5, 5),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["YQ==", "%", "\ud800", 1 << 31, 1 << 63, 1 << 64, 10**400]),
)
rows = st.lists(st.lists(st.floats(width=32) | scalars, max_size=3), max_size=3)
values = st.recursive(
    scalars | rows,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=10,
)
bodies = st.dictionaries(names, values, max_size=3) | values


def encode(value: Any) -> bytes:
    return json.dumps(value).encode()


PIECES = [
    b"{",
    b"[",
    b"[" * 999,
    b"]",
    b'"',
    b":",
    b",",
    b"null",
    b"1e999",
    b"-1",
    b"\\ud800",
    b"\xff",
]


@fuzz
@given(bodies.map(encode) | st.binary(max_size=60))
def test_any_body_is_a_request_or_a_data_error(body: bytes) -> None:
    for each in vary(body, PIECES):
        try:
            request = parse_request(each, SIGNATURES)
        except DataError as error:
            assert str(error)
        else:
            answer = json.loads(format_response(request, request.arrays))
            assert list(answer) == ["predictions" if request.by_row else "outputs"]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    model = ServedModel("m", 1, SIGNATURES)
    server = ModelServer(model, "127.0.0.1", 0, limits=Limits(body_bytes=1 << 16, seconds=20))
    thread = threading.Thread(target=server.run)
    thread.start()
    yield server.port
    server.shut_down()
    thread.join(60)
    assert not thread.is_alive()


GOOD = encode({"instances": [[1, 2]]})
lines = st.sampled_from(
    ["POST /v1/models/m:predict HTTP/1.1", "GET /v1/models/m HTTP/1.1", "GET / HTTP/1.1",
     "GET /v1/models/m/metadata HTTP/1.1", "POST /v1/models/m/versions/1:predict HTTP/1.0",
     "PUT /v1/models/m HTTP/1.1", "HEAD /v1/models/m HTTP/1.1", "OPTIONS * HTTP/1.1",
     "CONNECT a:1 HTTP/1.1", "GET http://a/ HTTP/1.1", "POST /v1/models/m:predict HTTP/9.9",
     "GET /v1/models/%ff%2f%00 HTTP/1.1", "X", "PRI * HTTP/2.0"]
)  # fmt: skip
fields = st.sampled_from(
    ["Host: localhost", "Host: evil", "Content-Length: 24", "Content-Length: 0",
     "Content-Length: -1", "Content-Length: 99999999999999999999", "Content-Length: 70000",
     "Content-Length: 2 4", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip",
     "Expect: 100-continue", "Connection: close", "Connection: upgrade", "Upgrade: websocket",
     "Upgrade: h2c", "Connection: keep-alive", " folded", "Authorization: Bearer x", "X", ":",
     "X: \x00", "X: ä", "Content-Type: text/plain", "Origin: http://localhost", "Origin: null",
     "Origin: ://", "Origin: http://[::1", "Origin:"]
)  # fmt: skip
ends = st.sampled_from(["\r\n", "\r\n", "\r\n", "\n", "\r", ""])


@st.composite
def requests(draw: Any) -> bytes:
    """A request whose headers may contradict each other and its body."""
    head = [draw(lines), *(["Host: localhost"] if draw(st.booleans()) else [])]
    head += draw(st.lists(fields, max_size=3))
    body: bytes = draw(st.just(GOOD) | bodies.map(encode) | st.binary(max_size=20))
    if draw(st.booleans()):
        head.append(f"Content-Length: {len(body)}")
    end: str = draw(ends)
    return end.join([*head, "", ""]).encode("latin-1", "replace") + body


streams = st.lists(requests() | st.binary(max_size=30), min_size=1, max_size=3).map(b"".join)


def exchange(port: int, data: bytes) -> bytes:
    received = b""
    with (
        contextlib.suppress(ConnectionError),
        socket.create_connection(("127.0.0.1", port), timeout=60) as connection,
    ):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while block := connection.recv(1 << 16):
            received += block
    return received


@fuzz
@given(data=streams)
def test_any_bytes_are_answered_or_refused(port: int, data: bytes) -> None:
    for each in vary(
        data, [b"\r\n", b"\r\n\r\n", b" ", b":", b"\x00", b"0\r\n\r\n", b"\xff", b"99"]
    ):
        answer = exchange(port, each)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 "), answer
        statuses = {int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", answer)}
        assert statuses <= {100, 200, 400, 401, 403, 404, 405, 408, 413, 421}, answer


def test_the_server_answers_after_all_of_this(port: int) -> None:
    head = f"POST /v1/models/m:predict HTTP/1.1\r\nHost: a.localhost\r\nContent-Length: {len(GOOD)}"
    answer = exchange(port, f"{head}\r\nConnection: close\r\n\r\n".encode() + GOOD)
    assert answer.endswith(b'{"predictions": [[1.0, 2.0]]}'), answer
