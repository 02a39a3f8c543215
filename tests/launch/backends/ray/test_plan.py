"""What Ray is asked for, compared whole. Ray itself is not needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from phalanx import JobError
from phalanx.cluster.spec import Role
from phalanx.launch.backends.ray import RayLauncher
from phalanx.launch.backends.ray.plan import PlacementStrategy, RayOptions
from phalanx.launch.job import Job, Program, ProgramKind, Resources

GOLDEN = Path(__file__).parents[2] / "golden"
JOB = Job(
    name="digits",
    program=Program(ProgramKind.FILE, "train.py", ("--job={role}", "it's")),
    workers=1,
    ps=1,
    restarts=1,
    model_dir="/shared/digits",
    resources={
        Role.WORKER: Resources(cpus=4, memory=8 << 30, gpus=1),
        Role.PS: Resources(cpus=0.5),
    },
)
OPTIONS = RayOptions("/shared/code", strategy=PlacementStrategy.SPREAD)


def test_rendered_plan_matches_golden_file() -> None:
    assert RayLauncher(OPTIONS).plan(JOB).render() + "\n" == (GOLDEN / "ray.yaml").read_text()


def test_each_task_has_its_own_bundle() -> None:
    plan = RayLauncher(OPTIONS).plan(JOB)
    assert {str(task): plan.bundle(task) for task in JOB.tasks()} == {
        "chief-0": {"CPU": 1},
        "worker-0": {"CPU": 4, "GPU": 1, "memory": 8 << 30},
        "ps-0": {"CPU": 0.5},
    }


def test_unknown_placeholder_is_rejected() -> None:
    program = Program(ProgramKind.FILE, "train.py", ("{roll}",))
    with pytest.raises(JobError, match="unknown placeholder"):
        RayLauncher(OPTIONS).plan(replace(JOB, program=program))
