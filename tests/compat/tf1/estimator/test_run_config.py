"""RunConfig: its settings, and the task of TF_CONFIG."""

import json
from typing import Any

import pytest
import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.contrib.learn import RunConfig as LearnRunConfig
from phalanx.compat.tf1.contrib.training import GreedyLoadBalancingStrategy, byte_size_load_fn
from phalanx.compat.tf1.estimator import RunConfig
from phalanx.compat.tf1.estimator.checks import check_strategies
from phalanx.compat.tf1.estimator.run_config import make_device_fn
from phalanx.errors import ConfigurationError

CLUSTER = {"master": ["m:1"], "ps": ["p:1", "p:2"], "worker": ["w:1", "w:2"]}


def read(monkeypatch: pytest.MonkeyPatch, role: str, index: int = 0, **cluster: Any) -> RunConfig:
    task = {"type": role, "index": index}
    config = {"cluster": cluster or CLUSTER, "task": task, "environment": "cloud"}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    return LearnRunConfig()


def test_single_process() -> None:
    config = RunConfig()
    assert config.is_chief
    assert (config.master, config.task_type, config.task_id) == ("", "worker", 0)
    assert (config.num_worker_replicas, config.num_ps_replicas) == (1, 0)
    assert config.save_checkpoints_secs == 600
    assert config.save_checkpoints_steps is None
    assert make_device_fn(config) is None


def test_master_counts_as_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read(monkeypatch, "master")
    assert config.is_chief
    assert config.task_type == "master"
    assert (config.num_worker_replicas, config.num_ps_replicas) == (3, 2)
    assert config.master == "grpc://m:1"
    assert config.cluster_spec.as_dict() == CLUSTER
    assert config.environment == "cloud"
    assert list(config.session_config.device_filters) == ["/job:ps", "/job:master/task:0"]


def test_chief_counts_as_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read(monkeypatch, "chief", chief=["c:1"], worker=["w:1"], ps=["p:1"])
    assert config.task_type == "chief"
    assert config.num_worker_replicas == 2


def test_worker_0_is_chief_without_a_chief(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, "worker", worker=["a:1", "b:1"], ps=["p:1"]).is_chief
    assert not read(monkeypatch, "worker", 1, worker=["a:1", "b:1"], ps=["p:1"]).is_chief


def test_worker_sees_only_itself_and_the_ps(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read(monkeypatch, "worker", 1)
    assert not config.is_chief
    assert config.global_id_in_cluster == 2
    assert list(config.session_config.device_filters) == ["/job:ps", "/job:worker/task:1"]
    own = tf.ConfigProto(device_filters=["/job:ps"])
    assert list(config.replace(session_config=own).session_config.device_filters) == ["/job:ps"]


def test_evaluator_is_not_in_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read(monkeypatch, "evaluator")
    assert not config.is_chief
    assert (config.master, config.num_ps_replicas, config.num_worker_replicas) == ("", 0, 0)
    assert config.cluster_spec.as_dict() == {}


def test_replace_keeps_the_rest() -> None:
    config = RunConfig(save_summary_steps=7).replace(save_checkpoints_steps=5, model_dir="m")
    assert config.save_summary_steps == 7
    assert config.save_checkpoints_secs is None
    assert config.model_dir == "m"
    with pytest.raises(ValueError, match="RunConfig has no setting 'speed': there are device_fn"):
        config.replace(speed=1)
    with pytest.raises(ValueError, match="both save_checkpoints_steps and save_checkpoints_secs"):
        RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1)
    with pytest.raises(ValueError, match="keep_checkpoint_max is -1"):
        RunConfig(keep_checkpoint_max=-1)
    with pytest.raises(TypeError, match="save_summary_steps is '100': it must be a number"):
        RunConfig(save_summary_steps="100")  # type: ignore[arg-type]
    for kind in (RunConfig, LearnRunConfig):
        with pytest.raises(TypeError, match=r"no setting 'modle_dir': did you mean model_dir\?"):
            kind(modle_dir="m")
    with pytest.raises(AttributeError, match="RunConfig has no setting 'modle_dir'"):
        _ = config.modle_dir


def place(device_fn: Any, sizes: list[int]) -> list[str]:
    with tf.Graph().as_default(), tf.device(device_fn):
        return [tf.get_variable(f"v{i}", [size]).device for i, size in enumerate(sizes)]


def test_variables_go_to_the_ps_in_turn_or_by_load(monkeypatch: pytest.MonkeyPatch) -> None:
    config = read(monkeypatch, "worker")
    in_turn = place(make_device_fn(config), [100, 1, 1])
    assert [each[-1] for each in in_turn] == ["0", "1", "0"]
    setter = tf.train.replica_device_setter(
        cluster=config.cluster_spec,
        ps_strategy=GreedyLoadBalancingStrategy(2, byte_size_load_fn),
    )
    by_load = place(make_device_fn(config.replace(device_fn=setter)), [100, 1, 1])
    assert [each[-1] for each in by_load] == ["0", "1", "1"]


def test_strategies_of_one_replica_have_no_effect() -> None:
    for strategy in (tf.distribute.MirroredStrategy(["/cpu:0"]), tf.distribute.get_strategy()):
        check_strategies(RunConfig(train_distribute=strategy, eval_distribute=strategy))


def test_strategies_of_several_replicas_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    one = tf.distribute.OneDeviceStrategy("/cpu:0")
    monkeypatch.setenv("TF_CONFIG", json.dumps({
        "cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "worker", "index": 0},
    }))  # fmt: skip
    with pytest.raises(ConfigurationError, match=r"is a OneDeviceStrategy of 1 replicas and 2 tas"):
        check_strategies(RunConfig(train_distribute=one))
