"""The HTTP server for Prometheus."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import pytest

from phalanx.errors import ConfigurationError
from phalanx.metrics_endpoint import MetricsEndpoint

prometheus_client = pytest.importorskip("prometheus_client", reason="pip install phalanx[metrics]")


@pytest.fixture
def endpoint() -> Iterator[MetricsEndpoint]:
    registry = prometheus_client.CollectorRegistry()
    prometheus_client.Gauge("answer", "The answer.", registry=registry).set(42)
    endpoint = MetricsEndpoint(registry, "127.0.0.1", 0)
    yield endpoint
    endpoint.close()


def get(endpoint: MetricsEndpoint, path: str = "/metrics", **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=60)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_metrics_are_answered_in_both_formats(endpoint: MetricsEndpoint) -> None:
    assert get(endpoint)[1].endswith("answer 42.0\n")
    assert get(endpoint, Accept="application/openmetrics-text; version=1.0.0")[1].endswith(
        "# EOF\n"
    )


def test_other_paths_and_methods_are_refused(endpoint: MetricsEndpoint) -> None:
    assert get(endpoint, "/")[0] == 404
    with socket.create_connection(("127.0.0.1", endpoint.port), 60) as client:
        client.sendall(b"POST /metrics HTTP/1.0\r\n\r\n")
        assert b" 501 " in client.recv(1000)


def test_page_of_another_site_cannot_read_the_metrics(endpoint: MetricsEndpoint) -> None:
    assert get(endpoint, Host=f"evil.example:{endpoint.port}")[0] == 421
    assert get(endpoint, Host=f"localhost:{endpoint.port}")[0] == 200
    assert get(endpoint, Host="[::1]")[0] == 200


def test_names_of_other_sites_are_refused_on_any_address() -> None:
    endpoint = MetricsEndpoint(prometheus_client.CollectorRegistry(), "0.0.0.0", 0)
    own, service = socket.gethostname(), "digits-chief-0.digits.research.svc"
    known = ["10.0.0.7:9400", "[fd00::7]:9400", "node7:9400", f"{service}:9400"]
    known += [f"{service}.cluster.local", own, f"{socket.getfqdn()}."]
    foreign = [
        "evil.example",
        f"{own}.evil.example:9400",
        "10.0.0.7.evil.example",
        "evil.example:",
        "",
    ]
    for expected, headers in ((200, known), (421, foreign)):
        assert {each: get(endpoint, Host=each)[0] for each in headers} == dict.fromkeys(
            headers, expected
        )
    endpoint.close()


def test_name_of_the_address_is_known(endpoint: MetricsEndpoint) -> None:
    # A name to the resolver, though not a full address.
    named = MetricsEndpoint(prometheus_client.CollectorRegistry(), "127.1", 0)
    assert get(named, Host="127.1:9400")[0] == 200
    assert get(endpoint, Host="127.1:9400")[0] == 421
    named.close()


def test_clients_that_send_nothing_do_not_add_up(endpoint: MetricsEndpoint) -> None:
    silent = [socket.create_connection(("127.0.0.1", endpoint.port), 60) for _ in range(30)]
    try:
        # Those beyond the limit are closed at once.
        assert silent[-1].recv(1) == b""
    finally:
        for client in silent:
            client.close()


def test_taken_port_is_an_error(endpoint: MetricsEndpoint) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be served .* Choose another"):
        MetricsEndpoint(prometheus_client.CollectorRegistry(), "127.0.0.1", endpoint.port)


def test_closed_endpoint_frees_its_port() -> None:
    registry = prometheus_client.CollectorRegistry()
    first = MetricsEndpoint(registry, "127.0.0.1", 0)
    port = first.port
    first.close()
    second = MetricsEndpoint(registry, "127.0.0.1", port)
    assert second.port == port
    second.close()
