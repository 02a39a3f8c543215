"""Waiting for the other tasks of the cluster."""

from __future__ import annotations

import socket

import pytest

from phalanx import Cluster, PeerError, Role, RunConfig, Task, TFConfig
from phalanx.train.runtime.control_channel import is_listening
from phalanx.train.runtime.peers import accept_connections, wait_for_peers
from phalanx.train.runtime.topology import resolve_topology


def find_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_task_is_found_while_it_accepts_connections() -> None:
    worker = find_address()
    cluster = Cluster.of(chief=find_address(), workers=[worker])
    topology = resolve_topology(TFConfig(cluster, Task(Role.CHIEF)), RunConfig())
    with accept_connections(cluster, Task(Role.WORKER)):
        wait_for_peers(topology, 30)
    assert not is_listening(worker)
    with pytest.raises(PeerError, match=f"gave up after 1 s waiting for worker-0 at {worker}"):
        wait_for_peers(topology, 1)


def test_an_address_in_use_is_left_alone() -> None:
    with socket.create_server(("", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with accept_connections(Cluster.of(workers=[address]), Task(Role.WORKER)):
            assert is_listening(address)
