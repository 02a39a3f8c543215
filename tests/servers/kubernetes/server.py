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


def make_certificate(certificate: Path, key: Path, *addresses: str) -> None:
    """Make a self-signed certificate for these addresses of this machine."""
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    alternatives = ",".join(f"IP:{address}" for address in addresses)
    names = ["-subj", "/CN=kubernetes", "-addext", f"subjectAltName={alternatives}"]
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
    certificate, key = directory / "ca.crt", directory / "key.pem"
    # The gateway is this machine, as isolated pods see it.
    addresses = sorted({"127.0.0.1", cluster.networks.gateway})
    make_certificate(certificate, key, *addresses)
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secured.load_cert_chain(certificate, key)
    servers = []
    for address in addresses:
        server = http.server.ThreadingHTTPServer((address, 0), handler)
        server.daemon_threads = True
        server.socket = secured.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
        servers.append(server)
    ports = dict(zip(addresses, (server.server_address[1] for server in servers), strict=True))
    port = ports["127.0.0.1"]
    cluster.address = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(port),
    }
    gateway = cluster.networks.gateway
    cluster.status_server = f"https://{gateway}:{ports[gateway]}"
    threads = [
        *(threading.Thread(target=server.serve_forever) for server in servers),
        threading.Thread(target=cluster.control),
    ]
    for thread in threads:
        thread.start()
    config = directory / "kubeconfig"
    config.write_text(KUBECONFIG.format(port=port, certificate=certificate))
    try:
        yield cluster, {"KUBECONFIG": str(config)}
    finally:
        for server in servers:
            server.shutdown()
        cluster.stop()
        for thread in threads:
            thread.join(10)
        for server in servers:
            server.server_close()
