"""Check peers over real sockets: which answer, which do not, and why."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from phalanx import Cluster, Role, Task, TFConfig
from phalanx.cluster.preflight import check_peers
from phalanx.launch.backends.local.ports import hold_ports


@contextlib.contextmanager
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.contextmanager
def unresponsive() -> Iterator[str]:
    """An address that never accepts a connection, because its backlog is full."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(server.getsockname())
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed() -> Iterator[str]:
    """A reserved port on which no process listens."""
    with hold_ports(1) as (port,):
        yield f"127.0.0.1:{port}"


def worker_0(workers: list[str]) -> TFConfig:
    return TFConfig(Cluster.of(workers=["127.0.0.1:1", *workers]), Task(Role.WORKER))


def test_each_unreachable_peer_is_reported_with_the_reason(closed: str) -> None:
    with listening() as open_port:
        config = worker_0([open_port, closed, "no-such-host.invalid:1"])
        reports = check_peers(config, timeout=60)
    assert [report.task.index for report in reports] == [1, 2, 3]
    assert reports[0].reason is None
    assert "refused" in str(reports[1].reason)
    assert "does not resolve" in str(reports[2].reason)


def test_a_peer_that_accepts_and_stays_silent_does_not_answer() -> None:
    with listening() as silent:
        [report] = check_peers(worker_0([silent]), timeout=1, answers=True)
    assert "accepts connections, but does not answer" in str(report.reason)


@pytest.mark.parametrize("answer", [b"", b"settings"])
def test_a_peer_that_closes_or_sends_answers(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def accept() -> None:
            with server.accept()[0] as connection:
                connection.sendall(answer)

        thread = threading.Thread(target=accept)
        thread.start()
        [report] = check_peers(worker_0([address]), timeout=60, answers=True)
        thread.join(60)
    assert report.reason is None


def test_unresponsive_peer_is_reported_at_the_timeout() -> None:
    with unresponsive() as dead:
        [report] = check_peers(worker_0([dead]), timeout=1)
    assert "timed out while" in str(report.reason)


def test_address_family_that_the_kernel_lacks_is_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = socket.getaddrinfo

    def find(*about: Any, **more: Any) -> Any:
        """Resolve as on a host without IPv6 whose hosts file lists ::1 first."""
        no_family = 99
        return [(no_family, socket.SOCK_STREAM, 6, "", ("::1", 1)), *known(*about, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", find)
    with listening() as open_port:
        [report] = check_peers(worker_0([open_port]), timeout=60)
    assert report.reason is None


def test_the_task_itself_and_evaluators_are_not_checked(closed: str) -> None:
    cluster = Cluster.of(chief=closed, evaluators=[closed])
    assert check_peers(TFConfig(cluster, Task(Role.CHIEF)), timeout=1) == []


def test_a_thousand_unresponsive_peers_are_tried_in_parallel() -> None:
    with unresponsive() as dead:
        reports = check_peers(worker_0([dead] * 1000), timeout=2)
    assert len(reports) == 1000
    # On a busy machine some names are still being resolved at the timeout.
    assert all("timed out while" in str(report.reason) for report in reports)


def test_wait_finds_a_peer_that_starts_later(closed: str) -> None:
    host, port = closed.split(":")

    def start_later() -> None:
        time.sleep(0.5)
        with socket.create_server((host, int(port))) as server:
            server.settimeout(60)
            server.accept()

    thread = threading.Thread(target=start_later)
    thread.start()
    reports = check_peers(worker_0([closed]), timeout=60, wait=True)
    thread.join()
    assert reports[0].reason is None


def test_wait_ends_at_the_timeout_with_the_last_reason(closed: str) -> None:
    reports = check_peers(worker_0([closed]), timeout=2, wait=True)
    assert "refused" in str(reports[0].reason)
