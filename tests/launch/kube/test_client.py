"""The client against an API that answers as a real one would."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import kubernetes.client
import pytest

from phalanx import LaunchError
from phalanx.launch.kube import client as kubernetes_client
from phalanx.launch.kube.client import Client


class SilentPod(BaseHTTPRequestHandler):
    """Has said a line, and says nothing more to whoever asks for all it said."""

    protocol_version = "HTTP/1.1"
    over = threading.Event()

    def do_GET(self) -> None:
        since = parse_qs(urlsplit(self.path).query).get("sinceSeconds")
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.write(b"6\r\nhello\n\r\n" if since is None else b"4\r\nbye\n\r\n0\r\n\r\n")
        if since is None:
            self.over.wait(60)
            self.close_connection = True

    def log_message(self, *about: object) -> None:
        """Nothing."""


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setattr(kubernetes_client, "_LOG_SECONDS", 3.0)
    monkeypatch.setattr(kubernetes_client, "_RECONNECT_SECONDS", 0.0)
    monkeypatch.setattr(SilentPod, "over", threading.Event())
    with ThreadingHTTPServer(("127.0.0.1", 0), SilentPod) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = kubernetes.client.Configuration(f"http://127.0.0.1:{server.server_port}")
        client = Client()
        client._api = kubernetes.client.ApiClient(settings)
        yield client
        SilentPod.over.set()
        server.shutdown()


def test_log_reconnects_to_a_silent_pod(client: Client) -> None:
    assert list(client.log("digits-ps-0", "default", follow=True)) == ["hello", "bye"]


def test_broken_log_connection_raises(client: Client) -> None:
    with pytest.raises(LaunchError, match="the connection to the Kubernetes API broke: "):
        list(client.log("digits-ps-0", "default", follow=False))
