"""`phalanx serve` with clients that break the rules: real processes and sockets."""

import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")

ROW = json.dumps({"instances": [[1, 2, 3, 4]]}).encode()
TOKEN = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import keras

    from phalanx import Experiment
    from phalanx.train.export.saved_model import export
    from phalanx.train.model_dir.checkpoint_loader import TrainedModel

    folder = tmp_path_factory.mktemp("models") / "line"
    model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(1, name="y")])
    export(Experiment(), TrainedModel(model, 0, ""), str(folder))
    return folder


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[tuple[Any, int]]:
    command = [sys.executable, "-m", "phalanx", "serve", str(folder), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r":(\d+)/v1", line)
        assert found, line
        yield process, int(found[1])
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def port(exported: Path) -> Iterator[int]:
    options = ("--max-body", "64K", "--timeout", "5s", "--allow-host", "models.example.com")
    with serving(exported, *options) as (_, port):
        yield port


def exchange(port: int, *parts: bytes, pause: float = 0) -> bytes:
    """Send bytes, and return everything until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        for part in parts:
            try:
                connection.sendall(part)
            except OSError:
                break
            time.sleep(pause)
        return receive(connection)


def receive(connection: Any) -> bytes:
    received = b""
    try:
        while block := connection.recv(1 << 16):
            received += block
    except ConnectionError:
        pass
    return received


def request(
    body: bytes = ROW, *headers: str, host: str = "localhost", line: str | None = None
) -> bytes:
    line = line or "POST /v1/models/line:predict HTTP/1.1"
    fields = [f"Host: {host}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([line, *fields, "", ""]).encode() + body


def status(response: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d+)", response)
    return int(found[1]) if found else 0


def test_a_good_request_is_answered(port: int) -> None:
    response = exchange(port, request())
    assert status(response) == 200, response
    assert "predictions" in json.loads(response.partition(b"\r\n\r\n")[2])


@pytest.mark.parametrize(
    "header",
    [
        "Transfer-Encoding: chunked",
        "Content-Length: 5",
        "Content-Length: -1",
        "Content-Length: 0x10",
        "Content-Length: 99999999999999999999999999",
        "Transfer-Encoding: gzip, identity",
    ],
)
def test_contradictory_lengths_are_refused(port: int, header: str) -> None:
    smuggled = b"GET /v1/models/line HTTP/1.1\r\nHost: localhost\r\n\r\n"
    response = exchange(port, request(ROW, header) + smuggled)
    assert status(response) in (400, 501), response
    assert response.count(b"HTTP/1.1") == 1


def test_a_chunked_body_is_read(port: int) -> None:
    head = b"POST /v1/models/line:predict HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(ROW), ROW)
    response = exchange(port, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    assert status(response) == 200, response


def test_a_body_over_the_limit_is_refused_and_not_taken_for_a_request(port: int) -> None:
    keep = request(b"x" * 70_000).replace(b"Connection: close\r\n", b"")
    response = exchange(port, keep + b"GET /v1/models/line HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status(response) == 413, response
    assert response.count(b"HTTP/1.1") == 1
    head = b"POST /v1/models/line:predict HTTP/1.1\r\nHost: localhost\r\n"
    chunks = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    response = exchange(port, head + b"Transfer-Encoding: chunked\r\n\r\n", *[chunks] * 8)
    assert status(response) == 413, response


def test_the_body_of_an_upgrade_is_not_taken_for_a_request(port: int) -> None:
    smuggled = b"GET /v1/models/line HTTP/1.1\r\nHost: localhost\r\n\r\n"
    upgrade = request(smuggled, "Connection: upgrade", "Upgrade: h2c")
    head = upgrade.removesuffix(smuggled).replace(b"Connection: close\r\n", b"")
    response = exchange(port, head, smuggled, pause=0.5)
    assert response.count(b"HTTP/1.1") == 1, response


def test_trailers_are_not_headers_and_are_bounded(port: int) -> None:
    head = b"POST /v1/models/line:predict HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
    body = b"\r\n%x\r\n%b\r\n0\r\n" % (len(ROW), ROW)
    named = exchange(port, head + b"Connection: close\r\n" + body + b"Host: localhost\r\n\r\n")
    assert status(named) == 400, named
    endless = [b"X: " + b"x" * 8000 + b"\r\n"] * 200
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(head + b"Host: localhost\r\n" + body)
        with pytest.raises(ConnectionError):
            for _ in range(20):
                connection.sendall(b"".join(endless))


def test_a_response_that_nobody_reads_is_ended(exported: Path) -> None:
    body = json.dumps({"instances": [[1, 2, 3, 4]] * 400_000}).encode()
    options = ("--max-body", "16M", "--timeout", "20s")
    with serving(exported, *options) as (process, port), socket.socket() as connection:
        connection.settimeout(120)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.sendall(request(body))
        assert status(connection.recv(1024)) == 200
        deadline = time.monotonic() + 120
        while count_connections(process.pid, port):
            assert time.monotonic() < deadline
            time.sleep(0.5)


def count_connections(pid: int, port: int) -> int:
    """The connections that a process has accepted at a port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    sockets = {f"socket:[{f[9]}]" for f in lines if f[1].endswith(f":{port:04X}") and f[3] != "0A"}
    held = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        try:
            held += str(each.readlink()) in sockets
        except FileNotFoundError:
            continue
    return held


def test_an_unread_body_closes_the_connection(port: int) -> None:
    for line in ("GET /v1/models/line HTTP/1.1", "POST /nothing HTTP/1.1", "PUT / HTTP/1.1"):
        smuggled = b"GET /v1/models/line HTTP/1.1\r\nHost: localhost\r\n\r\n"
        sent = request(smuggled, line=line).replace(b"Connection: close\r\n", b"")
        response = exchange(port, sent)
        assert response.count(b"HTTP/1.1") == 1, response
        assert b"connection: close" in response


@pytest.mark.parametrize(
    "parts",
    [
        [b"P"],
        [b"\r\n"] * 3,
        [b"POST /v1/models/line:predict HTTP/1.1\r\n", b"A: b\r\n", b"C: d\r\n"],
        [b"POST /v1/models/line:predict HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n", b"{"],
    ],
    ids=["first byte", "empty lines", "headers", "body"],
)
def test_a_request_that_never_arrives_is_ended(port: int, parts: list[bytes]) -> None:
    response = exchange(port, *parts, pause=0.3)
    assert status(response) in (0, 408, 421), response


def test_a_connection_without_a_request_is_ended(port: int) -> None:
    assert exchange(port) == b""


def test_endless_headers_are_refused(port: int) -> None:
    head = b"GET /v1/models/line HTTP/1.1\r\nHost: localhost\r\n"
    response = exchange(port, head, *[b"X: " + b"x" * 8000 + b"\r\n"] * 20)
    assert status(response) in (0, 400), response


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("10.1.2.3:8501", 200),
        ("models.example.com", 200),
        ("MODELS.example.com.:80", 200),
        ("evil.example.com", 421),
        ("127.0.0.1.evil.example.com", 421),
        ("localhost.evil.com:8501", 421),
        ("", 421),
    ],
)
def test_only_the_names_of_the_server_are_answered(port: int, host: str, expected: int) -> None:
    assert status(exchange(port, request(host=host))) == expected


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://localhost:8501", 200),
        ("https://models.example.com", 200),
        ("https://MODELS.example.com:444", 200),
        ("http://localhost:3000", 403),
        ("https://evil.example.com", 403),
        ("http://10.1.2.3", 403),
        ("https://evil.example.com://models.example.com", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_pages_of_other_sites_cannot_call_the_model(port: int, origin: str, expected: int) -> None:
    # A form or a fetch without CORS sends this type, for which no browser asks the server first.
    headers = ("Content-Type: text/plain", f"Origin: {origin}")
    assert status(exchange(port, request(ROW, *headers, host="localhost:8501"))) == expected
    good = "Origin: http://localhost:8501"
    twice = request(ROW, good, *headers, host="localhost:8501")
    assert status(exchange(port, twice)) == expected
    old = "POST /v1/models/line:predict HTTP/1.0"
    assert b" 403 " in exchange(port, f"{old}\r\nOrigin: null\r\n\r\n".encode())


def test_a_request_needs_one_host(port: int) -> None:
    assert status(exchange(port, request(ROW, "Host: localhost"))) == 400
    none = b"GET /v1/models/line HTTP/1.1\r\nConnection: close\r\n\r\n"
    assert status(exchange(port, none)) == 400


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 60_000,
        b'{"instances": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
        b'{"instances": ' + b"[" * 900 + b'"a"' + b"]" * 900
        + b', "signature_name": "serving_examples"}',
        b'{"instances": [[1,2,3,4]], "signature_name": [1]}',
        b'{"instances": [[1,2,3,4]], "signature_name": {"a": 1}}',
        b'{"instances": {"a": 1}}',
        b'{"instances": [null]}',
        b'{"instances": [[1,2,3,1e999999]], "inputs": 1}',
        b'{"instances": [[1,2,3,' + b"9" * 5000 + b"]]}",
        b'{"instances": [{"b64": 5}], "signature_name": "serving_examples"}',
        b'{"instances": ["\\ud800"], "signature_name": "serving_examples"}',
        b"\xff\xfe",
        b"",
    ],
    ids=range(13),
)  # fmt: skip
def test_odd_json_gets_400(port: int, body: bytes) -> None:
    response = exchange(port, request(body))
    assert status(response) == 400, response
    assert "error" in json.loads(response.partition(b"\r\n\r\n")[2])


def test_connections_beyond_the_limit_do_not_stop_the_server(port: int) -> None:
    held = [socket.create_connection(("127.0.0.1", port), timeout=120) for _ in range(600)]
    try:
        time.sleep(1)
        for each in held[:200]:
            each.close()
        time.sleep(1)
        assert status(exchange(port, request())) == 200
    finally:
        for each in held:
            each.close()


def test_token_and_tls(exported: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-keyout", key, "-out", certificate],
        check=False, capture_output=True,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl cannot make a certificate")
    (tmp_path / "token").write_text(TOKEN + "\n")
    files = ("--token-file", tmp_path / "token", "--tls-cert", certificate, "--tls-key", key)
    with serving(exported, *map(str, files)) as (process, port):
        context = ssl.create_default_context(cafile=str(certificate))

        def call(*headers: str) -> int:
            with (
                socket.create_connection(("127.0.0.1", port), timeout=120) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as connection,
            ):
                connection.sendall(request(ROW, *headers))
                response = receive(connection)
                assert json.loads(response.partition(b"\r\n\r\n")[2])
                return status(response)

        assert call(f"Authorization: Bearer {TOKEN}") == 200
        assert call(f"Authorization: bearer {TOKEN}") == 200
        assert call() == 401
        assert call(f"Authorization: Bearer {TOKEN[:-1]}x") == 401
        assert call(f"Authorization: Basic {TOKEN}") == 401
        assert call("Authorization: Bearer ä") == 401
        assert status(exchange(port, request())) == 0
        # Clients that do not even begin the handshake.
        held = [socket.create_connection(("127.0.0.1", port), timeout=120) for _ in range(700)]
        try:
            time.sleep(1)
            assert len(list(Path(f"/proc/{process.pid}/fd").iterdir())) < 600
            for each in held:
                each.close()
            time.sleep(1)
            assert call(f"Authorization: Bearer {TOKEN}") == 200
        finally:
            for each in held:
                each.close()


def test_sigterm_answers_what_is_in_flight(exported: Path) -> None:
    with serving(exported) as (process, port), ThreadPoolExecutor(1) as pool:
        body = json.dumps({"instances": [[1, 2, 3, 4]] * 2000}).encode()
        head, sent = request(body)[: -len(body)], body
        with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
            connection.sendall(head + sent[:100])
            time.sleep(1)
            process.send_signal(signal.SIGTERM)
            time.sleep(1)
            connection.sendall(sent[100:])
            answer = pool.submit(receive, connection)
            assert status(answer.result(60)) == 200
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--tls-cert", "{token}"], "belong together"),
        (["--tls-cert", "{token}", "--tls-key", "{token}"], "certificate cannot be used"),
        (["--token-file", "{empty}"], "holds no token"),
        (["--host", "no such host"], "cannot listen"),
        (["--max-body", "0"], "not a size"),
    ],
)
def test_wrong_options_are_reported(
    exported: Path, tmp_path: Path, options: list[str], reason: str
) -> None:
    from tests.cli.in_process import invoke

    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "empty").write_text("\n")
    paths = {"token": str(tmp_path / "token"), "empty": str(tmp_path / "empty")}
    done = invoke("serve", exported, *(each.format(**paths) for each in options))
    assert done.returncode == 2, done
    assert reason in done.stderr
