"""The part of a task in its run."""

from __future__ import annotations

import pytest
import tensorflow as tf

from phalanx import Cluster, Mode, Role, RunConfig, Task, TFConfig
from phalanx.errors import ConfigurationError
from phalanx.train.runtime.topology import join_all_reduce_strategy, resolve_topology

WITH_PS = Cluster.of(chief="a:1", workers=["b:1"], ps=["c:1"])
WITHOUT = Cluster.of(chief="a:1", workers=["b:1"])


@pytest.mark.parametrize(
    ("cluster", "config", "examples"),
    [
        (Cluster(), RunConfig(global_batch_size=128), 128),
        (WITHOUT, RunConfig(global_batch_size=128), 128),
        (WITH_PS, RunConfig(global_batch_size=128), 64),
        (WITH_PS, RunConfig(global_batch_size=128, mode=Mode.SYNC), 128),
        (WITH_PS, RunConfig(global_batch_size=128, mode=Mode.SYNC, replicas_to_aggregate=1), 64),
    ],
)
def test_examples_per_update_depend_on_the_strategy(
    cluster: Cluster, config: RunConfig, examples: int
) -> None:
    chief = Task(Role.CHIEF)
    topology = resolve_topology(TFConfig(cluster, chief), config)
    assert topology.context_for(config, chief).examples_per_update == examples


@pytest.mark.parametrize(("size", "rounded"), [(128, 126), (126, 126), (2, 3)])
def test_batch_size_is_rounded_down_to_a_multiple_of_the_replicas(size: int, rounded: int) -> None:
    config = RunConfig(global_batch_size=size, round_batch_size=True)
    cluster = Cluster.of(chief="a:1", workers=["b:1", "c:1"])
    topology = resolve_topology(TFConfig(cluster, Task(Role.CHIEF)), config)
    context = topology.context_for(config, Task(Role.WORKER, 1))
    assert (context.global_batch_size, context.batch_size) == (rounded, rounded // 3)
    assert context.examples_per_update == rounded


@pytest.mark.parametrize(
    ("shape", "expected"), [("chief=1,worker=1,evaluator=1", True), ("chief=1,worker=1", False)]
)
def test_has_evaluator_from_the_shape(
    monkeypatch: pytest.MonkeyPatch, shape: str, expected: bool
) -> None:
    monkeypatch.setenv("PHALANX_SHAPE", shape)
    assert (
        resolve_topology(TFConfig(WITHOUT, Task(Role.CHIEF)), RunConfig()).has_evaluator == expected
    )


def test_has_evaluator_from_tf_config() -> None:
    cluster = Cluster({**WITHOUT.addresses, Task(Role.EVALUATOR): "d:1"})
    assert resolve_topology(TFConfig(cluster, Task(Role.CHIEF)), RunConfig()).has_evaluator


def test_using_tensorflow_before_joining_the_cluster_is_an_error() -> None:
    tf.add(1, 1)
    topology = resolve_topology(TFConfig(WITHOUT, Task(Role.CHIEF)), RunConfig())
    with pytest.raises(ConfigurationError, match="make tensors and datasets in the experiment's"):
        join_all_reduce_strategy(topology, 60)


@pytest.mark.parametrize("servers", [0, 1])
def test_more_replicas_than_parameter_servers_are_refused(servers: int) -> None:
    ps = [f"p{number}:1" for number in range(servers)]
    cluster = Cluster.of(chief="c:1", workers=["w:1"], ps=ps)
    config = RunConfig(ps_replicas=2)
    with pytest.raises(ConfigurationError, match=f"ps_replicas is 2, .* {servers} parameter"):
        resolve_topology(TFConfig(cluster, Task(Role.CHIEF)), config)
