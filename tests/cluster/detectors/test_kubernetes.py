"""The detector of Indexed Jobs of Kubernetes."""

from __future__ import annotations

import pytest

from phalanx import Cluster, ClusterError, Role, Task, TFConfig
from phalanx.cluster.detectors.kubernetes import detect
from phalanx.cluster.tf_config import loads


def pod(index: int, **more: str) -> dict[str, str]:
    return {
        "JOB_COMPLETION_INDEX": str(index),
        "HOSTNAME": f"train-{index}",
        "PHALANX_SHAPE": "chief=1,worker=2,ps=1,evaluator=1",
        **more,
    }


def read(environ: dict[str, str]) -> TFConfig:
    config = detect(environ, [])
    assert config is not None
    return config


def test_pods_of_one_job_are_numbered_by_role() -> None:
    config = read(pod(2))
    assert config.task == Task(Role.WORKER, 1)
    assert config.cluster == Cluster.of(
        chief="train-0.train:2222",
        workers=["train-1.train:2222", "train-2.train:2222"],
        ps=["train-3.train:2222"],
    )
    assert read(pod(4)).task == Task(Role.EVALUATOR)


def test_service_and_port_are_read() -> None:
    config = read(pod(0, PHALANX_SERVICE="net", PHALANX_PORT="99"))
    assert config.cluster.hosts(Role.CHIEF) == ["train-0.net:99"]


@pytest.mark.parametrize("infix", ["-worker-", "-worker-0-"])
def test_pods_of_one_job_per_role_are_named_by_role(infix: str) -> None:
    config = read(pod(1, HOSTNAME=f"train{infix}1", PHALANX_ROLE="worker"))
    assert config.task == Task(Role.WORKER, 1)
    assert config.cluster.hosts(Role.WORKER)[1] == f"train{infix}1.train:2222"
    assert config.cluster.hosts(Role.PS) == [f"train{infix}0.train:2222".replace("worker", "ps")]


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (pod(0, PHALANX_ROLE="ps"), "are called NAME-ps-0"),
        (pod(5), "JOB_COMPLETION_INDEX is 5, but PHALANX_SHAPE has 5"),
        (pod(0, HOSTNAME="node7"), "HOSTNAME is 'node7'"),
        (pod(0, PHALANX_PORT="99999"), "PHALANX_PORT is '99999'"),
    ],
)
def test_invalid_variables_are_named_in_the_error(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        detect(environ, [])


def test_indexed_job_without_a_shape_is_ignored() -> None:
    environ = pod(2)
    del environ["PHALANX_SHAPE"]
    assert detect(environ, []) is None


def test_detected_cluster_round_trips_through_tf_config() -> None:
    config = read(pod(3))
    assert loads(config.dumps()) == config
