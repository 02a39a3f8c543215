from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.cluster import Cluster, Role, Task
from phalanx.data import Share, share_of
from phalanx.data.sharding import count_share
from phalanx.errors import DataError

CLUSTER = Cluster.of(chief="a:1", workers=["b:1", "c:1"], ps=["d:1"], evaluators=["e:1"])


def test_chief_and_workers_share_the_examples() -> None:
    assert share_of(CLUSTER, Task(Role.CHIEF)) == Share(3, 0)
    assert share_of(CLUSTER, Task(Role.WORKER, 1)) == Share(3, 2)


def test_coordinating_chief_has_no_share() -> None:
    assert share_of(CLUSTER, Task(Role.WORKER, 1), chief_trains=False) == Share(2, 1)
    with pytest.raises(DataError, match="chief-0 is not one of the tasks that train"):
        share_of(CLUSTER, Task(Role.CHIEF), chief_trains=False)


def test_evaluator_and_single_process_read_all_examples() -> None:
    assert share_of(CLUSTER, Task(Role.EVALUATOR)) == Share(1, 0)
    assert share_of(Cluster(), Task(Role.WORKER)) == Share(1, 0)


def test_parameter_server_reads_no_data() -> None:
    with pytest.raises(DataError, match="ps-0 is a parameter server"):
        share_of(CLUSTER, Task(Role.PS))


@given(st.integers(1, 7), st.integers(0, 40), st.integers(0, 60))
def test_shares_of_a_range_add_up(num_shards: int, start: int, more: int) -> None:
    stop = start + more
    counts = [count_share(Share(num_shards, shard), start, stop) for shard in range(num_shards)]
    assert sum(counts) == more
    numbers = range(start, stop)
    assert counts == [sum(n % num_shards == shard for n in numbers) for shard in range(num_shards)]
