"""The detectors of host lists in flags and in environment variables."""

from __future__ import annotations

import pytest

from phalanx import Cluster, ClusterError, Role, Task, TFConfig
from phalanx.cluster.detectors.host_lists import detect_flags, detect_variables

CLUSTER = Cluster.of(workers=["a:1", "b:1"], ps=["c:1"])
FLAGS = ["--ps_hosts=c:1", "--worker_hosts=a:1,b:1"]
VARIABLES = {"PS_HOSTS": "c:1", "WORKER_HOSTS": "a:1, b:1"}


@pytest.mark.parametrize(
    "argv",
    [
        [*FLAGS, "--job_name=worker", "--task_index=1"],
        [*FLAGS, "--job_name", "worker", "--task_index", "1", "--batch", "3"],
        [*FLAGS, "-job_name=worker", "--task-index=1"],
        [*FLAGS, "--job_name=ps", "--job_name=worker", "--task_index=1"],
    ],
)
def test_flags_of_tensorflow_1_programs_are_read(argv: list[str]) -> None:
    assert detect_flags({}, argv) == TFConfig(CLUSTER, Task(Role.WORKER, 1))


def test_flags_after_a_double_dash_are_ignored() -> None:
    assert detect_flags({}, ["--", *FLAGS, "--job_name=worker"]) is None


def test_job_name_without_hosts_is_ignored() -> None:
    assert detect_flags({}, ["--job_name=nightly"]) is None
    assert detect_variables({"JOB_NAME": "build-17"}, []) is None


def test_host_variables_are_read() -> None:
    environ = {**VARIABLES, "JOB_NAME": "worker", "TASK_INDEX": "1"}
    assert detect_variables(environ, []) == TFConfig(CLUSTER, Task(Role.WORKER, 1))


def test_master_host_is_the_chief() -> None:
    config = detect_variables({**VARIABLES, "JOB_NAME": "master", "MASTER_HOST": "m:1"}, [])
    assert config is not None
    assert config.task == Task(Role.CHIEF)
    assert config.cluster.hosts(Role.CHIEF) == ["m:1"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"JOB_NAME": "boss"}, "no role 'boss'"),
        ({"JOB_NAME": "worker", "TASK_INDEX": "x"}, "TASK_INDEX.* give the task index 'x'"),
        ({"JOB_NAME": "worker", "TASK_INDEX": "2"}, "variables JOB_NAME.*\n.*2 is out of range"),
        ({"JOB_NAME": "ps", "PS_HOSTS": "c"}, "'c' has no port"),
    ],
)
def test_invalid_host_variables_are_named_in_the_error(wrong: dict[str, str], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        detect_variables({**VARIABLES, **wrong}, [])
