"""What `docker` would be asked for: compared whole."""

from __future__ import annotations

import csv
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx import JobError
from phalanx.cluster.spec import Role
from phalanx.launch.backends.docker import DockerLauncher
from phalanx.launch.containers.container import Container, Mount
from phalanx.launch.job import Job, Program, ProgramKind, Resources

GOLDEN = Path(__file__).parents[1] / "golden"
JOB = Job(
    name="digits",
    program=Program(ProgramKind.FILE, "train.py", ("--job={role}",)),
    workers=1,
    environment={"SEED": "1"},
    resources={Role.WORKER: Resources(cpus=1.5, memory=1 << 30, gpus=1)},
)
CONTAINER = Container(
    "digits:1",
    mounts=tuple(map(Mount.parse, ["/data:/data:ro", "models:/models", "nfs://server/a:/nfs"])),
    labels={"team": "vision"},
    credentials="/home/ann/key.json",
)


def render(job: Job = JOB, container: Container = CONTAINER) -> str:
    return DockerLauncher(container, Path("jobs/digits"), "r1").plan(job).render() + "\n"


def test_rendered_plan_matches_golden_file() -> None:
    assert render() == (GOLDEN / "docker.txt").read_text()


def test_tensorboard_is_removed_with_the_job() -> None:
    launcher = DockerLauncher(CONTAINER, Path("x"), "r1", tensorboard=True)
    plan = launcher.plan(replace(JOB, model_dir="/models/digits"))
    assert plan.tensorboard[-6:] == (
        *("python", "-m", "tensorboard.main"),
        "--logdir=/models/digits",
        "--bind_all",
        "--port=6006",
    )
    assert "--publish=127.0.0.1:6006:6006" in plan.tensorboard
    assert "digits-tensorboard" in plan.processes.cleanup[0]
    assert "digits-tensorboard" in plan.render()
    with pytest.raises(JobError, match="nothing to show without --model-dir"):
        launcher.plan(JOB)


def test_values_of_variables_are_not_on_the_command_line() -> None:
    plan = DockerLauncher(CONTAINER, Path("x"), "r1").plan(JOB)
    argv = plan.processes.tasks[0].argv
    assert "--env=SEED" in argv
    assert not any("SEED=1" in each for each in argv)


@pytest.mark.parametrize("text", ["data", "/a:b", ":/data", "nfs://server:/data", "/a:/b:rx"])
def test_invalid_mount_is_rejected(text: str) -> None:
    with pytest.raises(JobError, match="is not a mount"):
        Mount.parse(text)


def test_comma_in_a_mount_adds_no_option() -> None:
    mounts = (Mount.parse('/a,readonly,b"c:/data,volume-nocopy'),)
    words = shlex.split(render(container=replace(CONTAINER, mounts=mounts)))
    [fields] = csv.reader([next(each for each in words if "/a," in each).removeprefix("--mount=")])
    assert fields == ["type=bind", 'source=/a,readonly,b"c', "target=/data,volume-nocopy"]


def test_two_mounts_with_one_target_are_rejected() -> None:
    mounts = (Mount.parse("/a:/data"), Mount.parse("/b:/data"))
    with pytest.raises(JobError, match="/data is mounted twice"):
        render(container=replace(CONTAINER, mounts=mounts))
