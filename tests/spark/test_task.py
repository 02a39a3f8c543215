"""What the process of a task is started with."""

import json
import os
import sys
from pathlib import Path

import pytest

from phalanx.cluster.spec import Cluster, Role, Task
from phalanx.spark.task import Assignment, TaskPlacement, map_gpus, plan_process

TASKS = (Task(Role.CHIEF), Task(Role.WORKER), Task(Role.PS), Task(Role.EVALUATOR))
CLUSTER = Cluster({task: f"host{number}:22" for number, task in enumerate(TASKS)})


def environment(number: int, **place: object) -> dict[str, str]:
    assignment = Assignment(TASKS, ("driver", 1), "token", "run", b"", {"MINE": "yes"})
    placement = TaskPlacement(number, "host", **place)  # type: ignore[arg-type]
    plan = plan_process(assignment, placement, CLUSTER, Path("folder"), {})
    return dict(plan.tasks[0].environment)


def test_tf_config_of_every_task_excludes_the_evaluator() -> None:
    config = json.loads(environment(1)["TF_CONFIG"])
    assert config["task"] == {"type": "worker", "index": 0}
    assert config["cluster"] == {"chief": ["host0:22"], "worker": ["host1:22"], "ps": ["host2:22"]}
    assert json.loads(environment(3)["TF_CONFIG"])["task"]["type"] == "evaluator"


def test_threads_are_the_cpus_of_the_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert environment(1, threads=4)["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize(
    ("number", "gpus", "visible"),
    [
        (1, ("2", "5"), "2,5"),
        (1, (), ""),
        (1, None, None),
        (2, ("2", "5"), ""),
    ],
)
def test_task_sees_its_gpus_and_ps_see_none(
    number: int, gpus: tuple[str, ...] | None, visible: str | None
) -> None:
    assert environment(number, gpus=gpus).get("CUDA_VISIBLE_DEVICES") == visible


@pytest.mark.parametrize(
    ("addresses", "visible", "gpus"),
    [
        (["0", "2"], "10,11,12,13", ("10", "12")),
        (["3", "7"], None, ("3", "7")),
        (["3", "7"], "", ("3", "7")),
        (["12"], "10,11,12,13", ("12",)),
        (["GPU-5ebe"], "GPU-5ebe,GPU-77aa", ("GPU-5ebe",)),
    ],
)
def test_addresses_count_the_gpus_that_the_executor_sees(
    addresses: list[str], visible: str | None, gpus: tuple[str, ...]
) -> None:
    assert map_gpus(addresses, visible) == gpus


def test_user_variables_take_precedence_and_modules_are_found() -> None:
    found = environment(0)
    assert found["MINE"] == "yes"
    assert set(filter(None, sys.path)) <= set(found["PYTHONPATH"].split(os.pathsep))
