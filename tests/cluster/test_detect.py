"""Which description of the cluster `detect` finds, and which comes first."""

from __future__ import annotations

import pytest

from phalanx import Cluster, ClusterError, Role, Task, TFConfig, detect

CLUSTER = Cluster.of(workers=["a:1", "b:1"], ps=["c:1"])
HOSTS = {"JOB_NAME": "ps", "PS_HOSTS": "c:1", "WORKER_HOSTS": "a:1,b:1"}
SLURM = {
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "0",
}


def test_detect_without_any_description_returns_a_single_process() -> None:
    config = detect({}, ["--learning-rate", "1"])
    assert config == TFConfig()
    assert config.is_chief()


def test_flags_take_precedence_over_tf_config() -> None:
    environ = {"TF_CONFIG": TFConfig(CLUSTER, Task(Role.PS)).dumps()}
    flags = ["--ps_hosts=c:1", "--worker_hosts=a:1,b:1", "--job_name=worker"]
    assert detect(environ, flags).task == Task(Role.WORKER)


def test_tf_config_takes_precedence_over_host_variables_and_those_over_slurm() -> None:
    environ = {"TF_CONFIG": TFConfig(CLUSTER, Task(Role.WORKER, 1)).dumps(), **HOSTS, **SLURM}
    assert detect(environ, []).task == Task(Role.WORKER, 1)
    del environ["TF_CONFIG"]
    assert detect(environ, []).task == Task(Role.PS)
    assert detect(SLURM, []).task == Task(Role.CHIEF)


def test_invalid_tf_config_is_an_error_even_if_another_description_exists() -> None:
    with pytest.raises(ClusterError, match="not JSON"):
        detect({"TF_CONFIG": "{", **HOSTS}, [])
