"""The batch script: the part that differs from job to job, compared whole."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from phalanx.cluster.spec import Role
from phalanx.launch.backends.slurm import SlurmLauncher
from phalanx.launch.backends.slurm.plan import SlurmOptions
from phalanx.launch.job import Job, Program, ProgramKind, Resources

GOLDEN = Path(__file__).parents[2] / "golden"
BODY = files("phalanx.launch.backends.slurm").joinpath("batch.sh").read_text()
JOB = Job(
    name="digits",
    program=Program(ProgramKind.FILE, "train.py", ("--job={role}", "--index", "{index}", "it's")),
    workers=2,
    ps=1,
    restarts=1,
    model_dir="/scratch/my digits",
    environment={"SEED": "1 2"},
    resources={role: Resources(cpus=2, memory=4 << 30) for role in Role},
    time_limit=90 * 60,
)
OPTIONS = SlurmOptions(
    "/home/ann", "/home/ann/logs/digits", "python3", partition="gpu", requeue=True
)


def head(job: Job) -> str:
    script = SlurmLauncher(OPTIONS).plan(job).render() + "\n"
    assert script.endswith(BODY)
    return script.removesuffix(BODY)


def test_rendered_plan_matches_golden_file() -> None:
    assert head(JOB) == (GOLDEN / "slurm.sh").read_text()


def test_roles_with_different_resources_make_a_heterogeneous_job() -> None:
    gpus = {role: Resources(cpus=2) for role in Role} | {Role.WORKER: Resources(cpus=2, gpus=1)}
    text = head(replace(JOB, resources=gpus))
    chief, worker, ps = text.split("#SBATCH hetjob\n")
    assert "#SBATCH --ntasks=1\n" in chief
    assert "#SBATCH --ntasks=2\n" in worker
    assert "#SBATCH --gpus-per-task=1\n" in worker
    assert "--gpus-per-task" not in ps
    assert all("--partition=gpu" in each and "--time=90" in each for each in (chief, worker, ps))
    assert "heterogeneous=yes\n" in text


def test_script_is_valid_bash() -> None:
    script = SlurmLauncher(OPTIONS).plan(JOB).render()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_script_size_does_not_depend_on_the_number_of_tasks() -> None:
    assert len(head(replace(JOB, workers=9000))) < len(head(JOB)) + 20
