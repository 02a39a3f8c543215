"""How the chief treats workers that are lost or do not respond."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest
import tensorflow as tf

from phalanx import Cluster, PeerError, Role, RunConfig, Task, TFConfig
from phalanx.train.runtime.ps_cluster import DataWindow, ParameterServerCluster, fetch
from phalanx.train.runtime.topology import resolve_topology


class Scheduled:
    """A remote value that returns or raises its outcomes in turn, and repeats the last one."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)

    def fetch(self) -> Any:
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def make_error(text: str) -> tf.errors.OpError:
    return tf.errors.UnavailableError(None, None, text)


def test_fetch_waits_for_another_worker_when_one_is_lost() -> None:
    assert fetch(Scheduled(make_error("reset"), make_error("refused"), 7)) == 7


def test_fetch_raises_an_error_that_repeats() -> None:
    with pytest.raises(tf.errors.UnavailableError, match="given up"):
        fetch(Scheduled(make_error("reset"), make_error("given up")))


def test_fetch_takes_no_result_for_none_while_its_error_is_set() -> None:
    with pytest.raises(tf.errors.UnavailableError, match="given up"):
        fetch(Scheduled(make_error("reset"), None, make_error("given up")))


@pytest.fixture
def address() -> Any:
    """An address that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def make_ps_cluster(*workers: str) -> ParameterServerCluster:
    cluster = Cluster.of(chief="127.0.0.1:1", workers=workers, ps=["127.0.0.1:2"])
    config = RunConfig(wait_seconds=5)
    topology = resolve_topology(TFConfig(cluster, Task(Role.CHIEF)), config)
    return ParameterServerCluster(topology, config, None, None)  # type: ignore[arg-type]


def test_lost_workers_are_named_when_all_are_lost() -> None:
    ps_cluster = make_ps_cluster("127.0.0.1:3", "127.0.0.1:4")
    ps_cluster.check_workers(time.monotonic(), longest=0.1)
    with pytest.raises(PeerError, match=r"5 s: worker-0 at 127.0.0.1:3, worker-1 at 127.0.0.1:4"):
        ps_cluster.check_workers(time.monotonic() - 7, longest=0.0)


def test_a_worker_that_is_running_is_given_more_time(address: str) -> None:
    ps_cluster = make_ps_cluster("127.0.0.1:3", address)
    ps_cluster.check_workers(time.monotonic() - 7, longest=0.0)
    ps_cluster.check_workers(time.monotonic() - 7, longest=1000.0)
    with pytest.raises(PeerError, match=r"though some are running; lost: worker-0 at 127.0.0.1:3"):
        ps_cluster.check_workers(time.monotonic() - 7, longest=0.1)


def test_batches_are_numbered_from_where_a_trainer_reads_on() -> None:
    window = DataWindow(0, 0, epochs=2, skips=(1, 4), first=1000)
    data = tf.data.Dataset.range(3)
    read = [(int(n), int(x)) for n, x in window.of(0).apply(data)]
    assert read == [(1000, 1), (1001, 2), (1002, 0), (1003, 1), (1004, 2)]
    # The second trainer was lost, and has used one batch of the window.
    again = window.of(1).apply(data, tf.constant(1, tf.int64))
    assert [(int(n), int(x)) for n, x in again] == [(1001, 2)]
    assert again.element_spec == window.element_spec(data.element_spec)
