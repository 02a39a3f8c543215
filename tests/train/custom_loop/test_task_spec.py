"""TaskSpec means what programs with a loop of their own expect."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import phalanx
from phalanx.errors import ClusterError

PS = "p:1"
WORKERS = ["a:1", "b:1", "c:1"]


def test_worker_0_is_the_master_if_there_is_none() -> None:
    specs = [phalanx.TaskSpecDef("worker", i, None, PS, WORKERS) for i in range(3)]
    assert [spec.is_master() for spec in specs] == [True, False, False]
    assert [spec.shard_index for spec in specs] == [0, 1, 2]
    assert {spec.num_workers for spec in specs} == {3}


def test_master_is_no_worker_but_trains_and_has_shard_0() -> None:
    master = phalanx.TaskSpecDef("master", 0, None, PS, WORKERS, "m:1")
    assert (master.is_master(), master.is_worker(), master.shard_index) == (True, False, 0)
    assert (master.type, master.master, master.num_workers, master.num_ps) == (
        "master", "m:1", 4, 1,
    )  # fmt: skip
    first = phalanx.TaskSpecDef("worker", 0, None, PS, WORKERS, "m:1")
    assert (first.is_master(), first.is_worker(), first.shard_index) == (False, True, 1)


def test_host_lists_are_lists_or_comma_separated() -> None:
    one = phalanx.TaskSpecDef("ps", 0, ps_hosts=[PS], worker_hosts=WORKERS)
    other = phalanx.TaskSpecDef("ps", "0", ps_hosts=PS, worker_hosts=", ".join(WORKERS))
    assert one.config == other.config
    assert one.is_ps()
    assert not one.is_worker()
    assert (one.ps_hosts, one.worker_hosts) == ([PS], WORKERS)


def test_one_process_is_its_own_master() -> None:
    for spec in (phalanx.TaskSpec({}), phalanx.TaskSpecDef()):
        assert (spec.is_master(), spec.is_worker(), spec.is_ps()) == (True, False, False)
        assert (spec.num_workers, spec.num_ps, spec.shard_index) == (1, 0, 0)
        assert (spec.target(), spec.device_fn()) == (None, None)
        spec.create_server()


@pytest.mark.parametrize("ask", ["use_last_worker_as_evaluator", "user_last_worker_as_evaluator"])
def test_last_worker_as_evaluator_leaves_the_training_cluster(ask: str) -> None:
    before = [phalanx.TaskSpecDef("worker", i, 4, PS, WORKERS, "m:1") for i in range(3)]
    specs = [getattr(spec, ask)() for spec in before]
    assert not any(spec.is_evaluator() for spec in before)
    assert {spec.trial for spec in specs} == {4}
    assert [spec.is_evaluator() for spec in specs] == [False, False, True]
    assert [spec.is_worker() for spec in specs] == [True, True, False]
    assert {spec.num_workers for spec in specs} == {3}
    assert specs[0].worker_hosts == ["a:1", "b:1"]
    assert specs[0].shard_index == 1
    assert specs[2].shard_index == 3


def test_one_worker_cannot_be_the_evaluator() -> None:
    spec = phalanx.TaskSpecDef("worker", 0, None, PS, ["a:1"])
    with pytest.raises(ClusterError, match="start one worker more"):
        spec.use_last_worker_as_evaluator()
    with pytest.raises(ClusterError, match="start one worker more"):
        phalanx.TaskSpec({}).use_last_worker_as_evaluator()


def test_tf_config_and_job_name_describe_the_same_task() -> None:
    cluster = {"master": ["m:1"], "worker": WORKERS, "ps": [PS]}
    task = {"type": "worker", "index": 1, "trial": 4}
    by_tf_config = phalanx.TaskSpec({"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})})
    by_variables = phalanx.TaskSpec(
        {
            "JOB_NAME": "worker",
            "TASK_INDEX": "1",
            "PS_HOSTS": PS,
            "WORKER_HOSTS": ",".join(WORKERS),
            "MASTER_HOST": "m:1",
        }
    )
    assert by_tf_config.config.cluster == by_variables.config.cluster
    assert by_tf_config.config.task == by_variables.config.task
    assert by_tf_config.trial == 4
    assert by_variables.shard_index == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("worker", 9, None, PS, WORKERS), "9"),
        (("boss", 0, None, PS, WORKERS), "boss"),
        (("worker", "x", None, PS, WORKERS), "number the tasks"),
        (("worker", 0, None, PS, ["a"]), "port"),
    ],
)
def test_invalid_arguments_are_named(arguments: tuple[object, ...], reason: str) -> None:
    with pytest.raises(ClusterError, match=reason):
        phalanx.TaskSpecDef(*arguments)  # type: ignore[arg-type]


def test_device_fn_places_variables_on_the_ps() -> None:
    import tensorflow as tf

    spec = phalanx.TaskSpecDef("worker", 1, None, PS, WORKERS)
    with tf.Graph().as_default(), tf.compat.v1.device(spec.device_fn()):
        variable = tf.compat.v1.get_variable("v", [2], use_resource=True)
        product = variable.read_value() * 2
    assert variable.device == "/job:ps/task:0"
    assert product.device == "/job:worker/task:1"


def test_device_fn_calls_the_chief_master() -> None:
    import tensorflow as tf

    spec = phalanx.TaskSpecDef("master", 0, None, PS, WORKERS, "m:1")
    with tf.Graph().as_default(), tf.compat.v1.device(spec.device_fn()):
        assert tf.constant(1).device == "/job:master/task:0"


def test_task_spec_does_not_import_tensorflow() -> None:
    code = (
        "import sys, phalanx\n"
        "spec = phalanx.TaskSpecDef('worker', 1, None, 'p:1', 'a:1,b:1')\n"
        "spec = spec.use_last_worker_as_evaluator(); spec.create_server(); spec.target()\n"
        "assert spec.is_evaluator() and 'tensorflow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
