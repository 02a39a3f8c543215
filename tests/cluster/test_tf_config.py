"""Reading and writing TF_CONFIG."""

import json
import string
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phalanx import Cluster, ClusterError, Role, Task, TFConfig
from phalanx.cluster.lint import lint
from phalanx.cluster.tf_config import loads, names_master, read_variable

HOSTS = st.text(string.ascii_lowercase + string.digits + "-.", min_size=1, max_size=20) | st.just(
    "[fe80::1]"
)
ADDRESSES = st.builds("{}:{}".format, HOSTS, st.integers(1, 65535))
ROLES = st.sampled_from([Role.WORKER, Role.PS])


@st.composite
def configs(draw: st.DrawFn) -> TFConfig:
    """Any valid cluster, also a sparse one, with any of its tasks."""
    indices = st.sets(st.integers(0, 30), max_size=5)
    workers = {Task(Role.WORKER, index) for index in draw(indices)}
    ps = {Task(Role.PS, index) for index in draw(indices)} if workers else set()
    chief = {Task(Role.CHIEF)} if draw(st.booleans()) or not workers else set()
    tasks = sorted(workers | ps | chief)
    size = len(tasks)
    addresses = draw(st.lists(ADDRESSES, min_size=size, max_size=size, unique=True))
    return TFConfig(
        Cluster(dict(zip(tasks, addresses, strict=True))),
        draw(st.sampled_from([*tasks, Task(Role.EVALUATOR, 3)])),
        trial=draw(st.integers(0, 99)),
        model_dir=draw(st.none() | st.text(min_size=1)),
        environment=draw(st.sampled_from(["local", "cloud"])),
    )


@given(configs())
def test_written_tf_config_has_no_problems_and_reads_back_equal(config: TFConfig) -> None:
    text = config.dumps()
    assert lint(text) == []
    assert loads(text) == config


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)
KEYS = [
    "cluster",
    "task",
    "model_dir",
    "environment",
    "worker",
    "chief",
    "ps",
    "type",
    "index",
    "0",
]
NEARLY_VALID = st.recursive(
    JSON | ADDRESSES | st.sampled_from(["worker", "chief", "master", "evaluator", "a:1", " b:2"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(), inner, max_size=4)
    ),
)


@given(JSON.map(json.dumps) | NEARLY_VALID.map(json.dumps) | st.text())
@example(
    '{"cluster": {"worker": ["a:' + "9" * 5000 + '"]}, "task": {"type": "worker", "index": 0}}'
)
@example('{"task": {"type": "worker", "index": ' + "9" * 5000 + "}}")
@example('{"task": {"type": "\\ud800", "index": "\\ud800"}}')
def test_loads_raises_only_cluster_error_and_only_for_problems_that_lint_finds(text: str) -> None:
    problems = lint(text)
    "\n".join(map(str, problems)).encode()
    try:
        loads(text)
    except ClusterError:
        assert any(not problem.tolerated for problem in problems)
    else:
        assert all(problem.tolerated for problem in problems)


def test_error_lists_every_problem() -> None:
    with pytest.raises(ClusterError) as caught:
        loads('{"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 5}}')
    assert str(caught.value).count("\n  - ") == 3


def read(**config: Any) -> TFConfig:
    return loads(json.dumps(config))


def test_master_is_read_and_written_as_chief() -> None:
    config = read(
        cluster={"master": ["m:1"], "worker": ["a:1"]}, task={"type": "master", "index": 0}
    )
    assert config.task == Task(Role.CHIEF)
    assert config.is_chief()
    assert json.loads(config.dumps())["cluster"] == {"chief": ["m:1"], "worker": ["a:1"]}
    old = replace(config, master=True).dumps()
    assert json.loads(old)["cluster"] == {"master": ["m:1"], "worker": ["a:1"]}
    assert json.loads(old)["task"]["type"] == "master"
    assert names_master({"TF_CONFIG": old})
    assert not names_master({"TF_CONFIG": config.dumps()})
    assert not names_master({})


def test_worker_0_is_chief_in_a_cluster_without_a_chief() -> None:
    cluster = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}
    assert read(cluster=cluster, task={"type": "worker", "index": 0}).is_chief()
    assert not read(cluster=cluster, task={"type": "worker", "index": 1}).is_chief()
    assert not read(cluster=cluster, task={"type": "ps", "index": 0}).is_chief()


def test_single_process_is_chief_unless_it_is_an_evaluator() -> None:
    assert read(task={"type": "worker", "index": 0}).is_chief()
    assert not read(task={"type": "evaluator", "index": 0}).is_chief()


def test_sparse_cluster_keeps_its_indices() -> None:
    config = read(cluster={"worker": {"1": "b:1"}}, task={"type": "worker", "index": 1})
    assert config.cluster.addresses == {Task(Role.WORKER, 1): "b:1"}
    assert json.loads(config.dumps())["cluster"] == {"worker": {"1": "b:1"}}


def test_string_indices_and_trials_are_read_as_numbers() -> None:
    config = read(
        cluster={"worker": ["a:1", "b:1"]}, task={"type": "worker", "index": "1", "trial": "4"}
    )
    assert config.task == Task(Role.WORKER, 1)
    assert config.trial == 4


def test_model_dir_and_environment_are_read() -> None:
    config = read(task={"type": "chief", "index": 0}, model_dir="gs://b/m", environment="cloud")
    assert (config.model_dir, config.environment) == ("gs://b/m", "cloud")


def test_variable_is_read_from_the_environment_and_may_be_empty() -> None:
    cluster = Cluster.of(workers=["a:1", "b:1"], ps=["c:1"])
    expected = TFConfig(cluster, Task(Role.PS), model_dir="d")
    assert read_variable({"TF_CONFIG": expected.dumps()}) == expected
    assert read_variable({"TF_CONFIG": " "}) is None
    assert read_variable({}) is None


def test_empty_object_is_a_single_process() -> None:
    assert read() == TFConfig()
