"""Roles, tasks and clusters."""

from __future__ import annotations

import pickle

import pytest

from phalanx import Cluster, ClusterError, Role, Task
from phalanx.cluster.spec import split_address


def test_master_is_the_chief() -> None:
    assert Role.parse("master") is Role.CHIEF


def test_unknown_role_is_an_error_that_lists_the_roles() -> None:
    with pytest.raises(ClusterError, match=r"no role 'boss'.*chief \(or master\), worker, ps"):
        Role.parse("boss")


def test_tasks_are_sorted_by_role_and_index() -> None:
    cluster = Cluster.of(chief="c:1", workers=[f"w{i}:1" for i in range(11)], ps=["p:1"])
    names = [str(task) for task in cluster.tasks()]
    assert names == ["chief-0", *(f"worker-{i}" for i in range(11)), "ps-0"]
    assert cluster.hosts(Role.WORKER)[10] == "w10:1"


def test_worker_0_acts_as_chief_in_a_cluster_without_a_chief() -> None:
    assert Cluster.of(workers=["a:1", "b:1"], ps=["c:1"]).chief() == Task(Role.WORKER)
    assert Cluster.of(chief="z:1", workers=["a:1"]).chief() == Task(Role.CHIEF)
    assert Cluster().chief() == Task(Role.CHIEF)


def test_without_evaluators_removes_evaluators() -> None:
    cluster = Cluster.of(workers=["a:1"], evaluators=["e:1"])
    assert cluster.without_evaluators() == Cluster.of(workers=["a:1"])


def test_cluster_can_be_pickled() -> None:
    cluster = Cluster.of(chief="c:1", workers=["a:1"])
    assert pickle.loads(pickle.dumps(cluster)) == cluster


@pytest.mark.parametrize(
    ("address", "parts"),
    [("a.b:1", ("a.b", 1)), ("127.0.0.1:65535", ("127.0.0.1", 65535)), ("[::1]:22", ("::1", 22))],
)
def test_addresses_are_split_into_host_and_port(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts
