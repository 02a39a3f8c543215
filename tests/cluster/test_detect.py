"""Who am I, whatever started me."""

from __future__ import annotations

import json

import pytest

from phalanx import Cluster, ClusterError, Role, Task, TFConfig, detect
from phalanx.cluster.detectors.slurm import expand_nodes

CLASSIC = Cluster.of(workers=["a:1", "b:1"], ps=["c:1"])
FLAGS = ["--ps_hosts=c:1", "--worker_hosts=a:1,b:1"]


def test_nothing_set_is_one_process_on_its_own() -> None:
    config = detect({}, ["--learning-rate", "1"])
    assert config == TFConfig()
    assert config.is_chief()


def test_tf_config() -> None:
    expected = TFConfig(CLASSIC, Task(Role.PS), model_dir="d")
    assert detect({"TF_CONFIG": expected.dumps()}, []) == expected


def test_an_empty_tf_config_counts_as_unset() -> None:
    assert detect({"TF_CONFIG": " "}, []) == TFConfig()


def test_a_wrong_tf_config_is_an_error_and_not_passed_over() -> None:
    with pytest.raises(ClusterError, match="not JSON"):
        detect({"TF_CONFIG": "{", "JOB_NAME": "ps", "PS_HOSTS": "c:1", "WORKER_HOSTS": "a:1"}, [])


@pytest.mark.parametrize(
    "argv",
    [
        [*FLAGS, "--job_name=worker", "--task_index=1"],
        [*FLAGS, "--job_name", "worker", "--task_index", "1", "--batch", "3"],
        [*FLAGS, "-job_name=worker", "--task-index=1"],
        [*FLAGS, "--job_name=ps", "--job_name=worker", "--task_index=1"],
    ],
)
def test_flags_of_tensorflow_1_programs(argv: list[str]) -> None:
    assert detect({}, argv) == TFConfig(CLASSIC, Task(Role.WORKER, 1))


def test_flags_weigh_more_than_the_environment() -> None:
    environ = {"TF_CONFIG": TFConfig(CLASSIC, Task(Role.PS)).dumps()}
    assert detect(environ, [*FLAGS, "--job_name=worker"]).task == Task(Role.WORKER)


def test_a_job_name_without_hosts_is_somebody_elses() -> None:
    assert detect({}, ["--job_name=nightly"]) == TFConfig()
    assert detect({"JOB_NAME": "build-17"}, []) == TFConfig()


VARIABLES = {"PS_HOSTS": "c:1", "WORKER_HOSTS": "a:1, b:1"}


def test_host_variables() -> None:
    environ = {**VARIABLES, "JOB_NAME": "worker", "TASK_INDEX": "1"}
    assert detect(environ, []) == TFConfig(CLASSIC, Task(Role.WORKER, 1))
    master = {**VARIABLES, "JOB_NAME": "master", "MASTER_HOST": "m:1"}
    assert detect(master, []).task == Task(Role.CHIEF)
    assert detect(master, []).cluster.hosts(Role.CHIEF) == ["m:1"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"JOB_NAME": "boss"}, "no role 'boss'"),
        ({"JOB_NAME": "worker", "TASK_INDEX": "x"}, "TASK_INDEX.* give the task index 'x'"),
        ({"JOB_NAME": "worker", "TASK_INDEX": "2"}, "variables JOB_NAME.*\n.*2 is out of range"),
        ({"JOB_NAME": "ps", "PS_HOSTS": "c"}, "'c' has no port"),
    ],
)
def test_wrong_host_variables_are_named(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        detect({**VARIABLES, **wrong}, [])


def slurm(procid: int, **more: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "342",
        "SLURM_STEP_NODELIST": "n[1-2],gpu7",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
        "SLURM_PROCID": str(procid),
        **more,
    }


def test_slurm_first_task_is_the_chief_and_the_others_are_workers() -> None:
    config = detect(slurm(3), [])
    assert config.task == Task(Role.WORKER, 2)
    assert config.cluster == Cluster.of(
        chief="n1:10128", workers=["n1:10129", "n2:10128", "n2:10129", "gpu7:10128"]
    )
    assert detect(slurm(0), []).is_chief()


def test_slurm_tasks_dealt_out_in_turn() -> None:
    config = detect(slurm(1, SLURM_DISTRIBUTION="cyclic"), [])
    assert config.cluster == Cluster.of(
        chief="n1:10128", workers=["n2:10128", "gpu7:10128", "n1:10129", "n2:10129"]
    )
    with pytest.raises(ClusterError, match="SLURM_DISTRIBUTION is 'plane'"):
        detect(slurm(1, SLURM_DISTRIBUTION="plane"), [])


def test_slurm_with_a_shape_and_a_port() -> None:
    environ = slurm(4, PHALANX_SHAPE="worker=2,ps=2,evaluator=1", PHALANX_PORT="2222")
    config = detect(environ, [])
    assert config.task == Task(Role.EVALUATOR)
    assert config.cluster == Cluster.of(workers=["n1:2222", "n1:2223"], ps=["n2:2222", "n2:2223"])


def test_slurm_outside_a_step_is_one_process() -> None:
    batch = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}
    assert detect(batch, []) == TFConfig()
    alone = {"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_PROCID": "0"}
    assert detect(alone, []) == TFConfig()


def test_a_shape_that_does_not_fit_the_step_is_an_error() -> None:
    with pytest.raises(ClusterError, match=r"has 3 tasks, but srun started 5.*--ntasks=3"):
        detect(slurm(0, PHALANX_SHAPE="chief=1,worker=2"), [])
    with pytest.raises(ClusterError, match="chief=1,worker=2,ps=1"):
        detect(slurm(0, PHALANX_SHAPE="5"), [])
    with pytest.raises(ClusterError, match="one chief at the most"):
        detect(slurm(0, PHALANX_SHAPE="chief=5"), [])


@pytest.mark.parametrize(
    ("short", "names"),
    [
        ("n1", ["n1"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("a,b[1,3]", ["a", "b1", "b3"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a[1-2].x.org", ["a1.x.org", "a2.x.org"]),
    ],
)
def test_slurms_node_lists(short: str, names: list[str]) -> None:
    assert expand_nodes(short) == names


def pod(index: int, **more: str) -> dict[str, str]:
    return {
        "JOB_COMPLETION_INDEX": str(index),
        "HOSTNAME": f"train-{index}",
        "PHALANX_SHAPE": "chief=1,worker=2,ps=1,evaluator=1",
        **more,
    }


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"PHALANX_PORT": "abc"}, "PHALANX_PORT is 'abc'"),
        ({"PHALANX_PORT": "65535"}, "what Slurm says of the cluster.*\n.*has the port '65536'"),
        ({"SLURM_STEP_NODELIST": "a[x-y]"}, "'x-y' in Slurm's list of nodes"),
    ],
)
def test_what_slurm_cannot_mean_is_an_error(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(ClusterError, match=said):
        detect(slurm(1, **wrong), [])


def test_an_indexed_kubernetes_job() -> None:
    config = detect(pod(2), [])
    assert config.task == Task(Role.WORKER, 1)
    assert config.cluster == Cluster.of(
        chief="train-0.train:2222",
        workers=["train-1.train:2222", "train-2.train:2222"],
        ps=["train-3.train:2222"],
    )
    assert detect(pod(4), []).task == Task(Role.EVALUATOR)
    named = detect(pod(0, PHALANX_SERVICE="net", PHALANX_PORT="99"), [])
    assert named.cluster.hosts(Role.CHIEF) == ["train-0.net:99"]


@pytest.mark.parametrize("middle", ["-worker-", "-worker-0-"])
def test_an_indexed_job_for_each_role(middle: str) -> None:
    config = detect(pod(1, HOSTNAME=f"train{middle}1", PHALANX_ROLE="worker"), [])
    assert config.task == Task(Role.WORKER, 1)
    assert config.cluster.hosts(Role.WORKER)[1] == f"train{middle}1.train:2222"
    assert config.cluster.hosts(Role.PS) == [f"train{middle}0.train:2222".replace("worker", "ps")]
    with pytest.raises(ClusterError, match="are called NAME-ps-0"):
        detect(pod(0, PHALANX_ROLE="ps"), [])


def test_a_pod_beyond_the_shape_or_with_another_name_is_an_error() -> None:
    with pytest.raises(ClusterError, match="JOB_COMPLETION_INDEX is 5, but PHALANX_SHAPE has 5"):
        detect(pod(5), [])
    with pytest.raises(ClusterError, match="HOSTNAME is 'node7'"):
        detect(pod(0, HOSTNAME="node7"), [])
    with pytest.raises(ClusterError, match="PHALANX_PORT is '99999'"):
        detect(pod(0, PHALANX_PORT="99999"), [])


def test_an_indexed_job_without_a_shape_is_no_cluster() -> None:
    environ = pod(2)
    del environ["PHALANX_SHAPE"]
    assert detect(environ, []) == TFConfig()


def test_what_is_detected_can_be_handed_on_as_tf_config() -> None:
    for environ in (slurm(3), pod(3)):
        config = detect(environ, [])
        assert detect({"TF_CONFIG": config.dumps()}, []) == config
        json.loads(config.dumps())
