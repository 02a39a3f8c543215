"""The detector of Slurm."""

from __future__ import annotations

import pytest

from phalanx import Cluster, ClusterError, Role, Task, TFConfig
from phalanx.cluster.detectors.slurm import detect, expand_nodes
from phalanx.cluster.tf_config import loads


def step(procid: int, **more: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "342",
        "SLURM_STEP_NODELIST": "n[1-2],gpu7",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
        "SLURM_PROCID": str(procid),
        **more,
    }


def read(environ: dict[str, str]) -> TFConfig:
    config = detect(environ, [])
    assert config is not None
    return config


def test_first_task_is_the_chief_and_the_others_are_workers() -> None:
    config = read(step(3))
    assert config.task == Task(Role.WORKER, 2)
    assert config.cluster == Cluster.of(
        chief="n1:10128", workers=["n1:10129", "n2:10128", "n2:10129", "gpu7:10128"]
    )
    assert read(step(0)).is_chief()


def test_cyclic_distribution_numbers_tasks_across_nodes() -> None:
    config = read(step(1, SLURM_DISTRIBUTION="cyclic"))
    assert config.cluster == Cluster.of(
        chief="n1:10128", workers=["n2:10128", "gpu7:10128", "n1:10129", "n2:10129"]
    )


def test_shape_and_port_are_read() -> None:
    config = read(step(4, PHALANX_SHAPE="worker=2,ps=2,evaluator=1", PHALANX_PORT="2222"))
    assert config.task == Task(Role.EVALUATOR)
    assert config.cluster == Cluster.of(workers=["n1:2222", "n1:2223"], ps=["n2:2222", "n2:2223"])


def test_process_outside_of_a_step_is_a_single_process() -> None:
    assert detect({"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, []) is None


def test_step_with_one_task_is_a_single_process() -> None:
    alone = {"SLURM_STEP_NODELIST": "n1", "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_PROCID": "0"}
    assert detect(alone, []) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"PHALANX_SHAPE": "chief=1,worker=2"}, r"has 3 tasks, but srun started 5.*--ntasks=3"),
        ({"PHALANX_SHAPE": "5"}, "chief=1,worker=2,ps=1"),
        ({"PHALANX_SHAPE": "chief=5"}, "at most one chief"),
        ({"PHALANX_PORT": "abc"}, "PHALANX_PORT is 'abc'"),
        ({"PHALANX_PORT": "65535"}, "the cluster described by Slurm.*\n.*has the port '65536'"),
        ({"SLURM_STEP_NODELIST": "a[x-y]"}, "'x-y' in Slurm's list of nodes"),
        ({"SLURM_DISTRIBUTION": "plane"}, "SLURM_DISTRIBUTION is 'plane'"),
    ],
)
def test_invalid_variables_are_named_in_the_error(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        detect(step(1, **wrong), [])


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("n1", ["n1"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("a,b[1,3]", ["a", "b1", "b3"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("a[1-2].x.org", ["a1.x.org", "a2.x.org"]),
    ],
)
def test_node_lists_are_expanded(nodelist: str, names: list[str]) -> None:
    assert expand_nodes(nodelist) == names


def test_detected_cluster_round_trips_through_tf_config() -> None:
    config = read(step(3))
    assert loads(config.dumps()) == config
