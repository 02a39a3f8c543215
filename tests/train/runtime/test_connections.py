from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from phalanx.cluster import Cluster, Role, Task
from phalanx.train.runtime.connections import PEER_SECONDS, WORKER_SECONDS, Connections

if not hasattr(socket, "TCP_USER_TIMEOUT"):
    pytest.skip("only Linux limits connections", allow_module_level=True)

CHIEF, WORKER, PS = Task(Role.CHIEF), Task(Role.WORKER), Task(Role.PS)


@pytest.fixture
def listeners() -> Iterator[dict[Task, socket.socket]]:
    opened = {task: socket.create_server(("127.0.0.1", 0)) for task in (CHIEF, WORKER, PS)}
    yield opened
    for listener in opened.values():
        listener.close()


def make_cluster(listeners: dict[Task, socket.socket]) -> Cluster:
    return Cluster({task: f"localhost:{each.getsockname()[1]}" for task, each in listeners.items()})


def read_limit(connection: socket.socket) -> float:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000


def test_a_worker_is_given_up_before_other_peers(listeners: dict[Task, socket.socket]) -> None:
    connections = Connections(make_cluster(listeners), CHIEF, has_ps=True)
    with (
        socket.create_connection(listeners[WORKER].getsockname()) as to_worker,
        socket.create_connection(listeners[PS].getsockname()) as to_ps,
    ):
        connections.limit_new()
        assert read_limit(to_worker) == WORKER_SECONDS
        assert read_limit(to_ps) == PEER_SECONDS
        assert to_worker.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.parametrize(
    ("task", "seconds"), [(WORKER, WORKER_SECONDS), (PS, PEER_SECONDS), (CHIEF, PEER_SECONDS)]
)
def test_connections_that_a_task_accepts_have_its_own_limit(
    task: Task, seconds: float, listeners: dict[Task, socket.socket]
) -> None:
    connections = Connections(make_cluster(listeners), task, has_ps=True)
    with socket.create_connection(listeners[task].getsockname()):
        accepted, _ = listeners[task].accept()
        with accepted:
            connections.limit_new()
            assert read_limit(accepted) == seconds


def test_trainers_of_an_all_reduce_have_the_longer_limit(
    listeners: dict[Task, socket.socket],
) -> None:
    connections = Connections(make_cluster(listeners), CHIEF, has_ps=False)
    with socket.create_connection(listeners[WORKER].getsockname()) as to_worker:
        connections.limit_new()
        assert read_limit(to_worker) == PEER_SECONDS


def test_connections_of_the_program_are_left_alone(listeners: dict[Task, socket.socket]) -> None:
    connections = Connections(make_cluster(listeners), CHIEF, has_ps=True)
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as connection,
    ):
        connections.limit_new()
        assert read_limit(connection) == 0


def test_connections_that_are_opened_later_are_found(listeners: dict[Task, socket.socket]) -> None:
    connections = Connections(make_cluster(listeners), CHIEF, has_ps=True)
    with socket.socket() as late:
        connections.limit_new()
        late.connect(listeners[WORKER].getsockname())
        connections.limit_new()
        assert read_limit(late) == WORKER_SECONDS
