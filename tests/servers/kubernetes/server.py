"""Starts the emulated cluster."""

from __future__ import annotations

import contextlib
import http.server
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.servers.kubernetes.api import Handler
from tests.servers.kubernetes.cluster import Kubernetes

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: here
contexts:
- name: here
  context: {{cluster: here, user: me}}
- name: user
  context: {{cluster: here, user: user}}
clusters:
- name: here
  cluster: {{server: "https://127.0.0.1:{port}", certificate-authority: {certificate}}}
users:
- name: me
  user: {{}}
- name: user
  user: {{token: user}}
"""


def _make_certificate(certificate: Path, key: Path) -> None:
    """Make a self-signed certificate for this machine."""
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    command = ["openssl", "req", "-x509", "-days", "1", *new, *names, *files]
    subprocess.run(command, check=True, capture_output=True, timeout=240)


@contextlib.contextmanager
def running(
    directory: Path, image: Path, isolated: bool = False
) -> Iterator[tuple[Kubernetes, dict[str, str]]]:
    """Start the server; yield the cluster, and the variables that its clients need."""
    cluster = Kubernetes(directory, image, isolated)
    handler = type("BoundHandler", (Handler,), {"cluster": cluster})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    port = server.server_address[1]
    cluster.address = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(port),
    }
    certificate, key = directory / "ca.crt", directory / "key.pem"
    _make_certificate(certificate, key)
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secured.load_cert_chain(certificate, key)
    server.socket = secured.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    threads = [
        threading.Thread(target=server.serve_forever),
        threading.Thread(target=cluster.control),
    ]
    for thread in threads:
        thread.start()
    config = directory / "kubeconfig"
    config.write_text(KUBECONFIG.format(port=port, certificate=certificate))
    try:
        yield cluster, {"KUBECONFIG": str(config)}
    finally:
        server.shutdown()
        cluster.stop()
        for thread in threads:
            thread.join(10)
        server.server_close()
