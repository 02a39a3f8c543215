"""What each local process would be started with: compared whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx import JobError
from phalanx.launch.backends.local import LocalLauncher
from phalanx.launch.backends.local.machine import Machine
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.termination import GracePeriods

MACHINE = Machine(processors=8, gpus=(), environ={"HOME": "/home/me"}, python="python3")
JOB = Job(
    name="train",
    program=Program(ProgramKind.FILE, "train.py", ("--job_name={role}", "--rate", "0.1")),
    workers=2,
    ps=1,
    evaluators=1,
    model_dir="runs/1",
)
PORTS = (2220, 2221, 2222, 2223)


def launcher(machine: Machine = MACHINE, share: bool = True) -> LocalLauncher:
    return LocalLauncher(machine, PORTS, log_dir=Path("logs"), run_id="r1", share=share)


def environment(name: str, job: Job = JOB, **more: object) -> dict[str, str]:
    plans = {str(each.task): each for each in launcher(**more).plan(job).tasks}  # type: ignore[arg-type]
    return dict(plans[name].environment)


def test_rendered_plan_is_a_shell_command_for_each_task() -> None:
    job = replace(JOB, workers=1, ps=0, evaluators=0, model_dir=None)
    plan = replace(launcher(), ports=(2220, 2221)).plan(job)
    cluster = '"cluster": {"chief": ["127.0.0.1:2220"], "worker": ["127.0.0.1:2221"]}'
    assert (
        plan.render()
        == f"""\
# chief-0, output in logs/chief-0.log
TF_CONFIG='{{{cluster}, "task": {{"type": "chief", "index": 0}}}}' \\
TF_ENABLE_ONEDNN_OPTS=1 \\
TF_CPP_MIN_LOG_LEVEL=1 \\
PYTHONUNBUFFERED=1 \\
OMP_NUM_THREADS=4 \\
TF_NUM_INTRAOP_THREADS=4 \\
TF_NUM_INTEROP_THREADS=4 \\
PHALANX_RUN_ID=r1 \\
PHALANX_TASK=chief-0 \\
python3 train.py --job_name=chief --rate 0.1

# worker-0, output in logs/worker-0.log
TF_CONFIG='{{{cluster}, "task": {{"type": "worker", "index": 0}}}}' \\
TF_ENABLE_ONEDNN_OPTS=1 \\
TF_CPP_MIN_LOG_LEVEL=1 \\
PYTHONUNBUFFERED=1 \\
OMP_NUM_THREADS=4 \\
TF_NUM_INTRAOP_THREADS=4 \\
TF_NUM_INTEROP_THREADS=4 \\
PHALANX_RUN_ID=r1 \\
PHALANX_TASK=worker-0 \\
python3 train.py --job_name=worker --rate 0.1"""
    )


def test_tasks_know_a_grace_period_of_their_own() -> None:
    long = replace(launcher(), grace_periods=GracePeriods(900)).plan(JOB)
    assert {dict(task.environment)["PHALANX_GRACE"] for task in long.tasks} == {"900"}


def test_chief_learns_of_the_evaluator() -> None:
    assert environment("chief-0")["PHALANX_SHAPE"] == "chief=1,worker=2,ps=1,evaluator=1"


def test_evaluator_has_a_task_and_no_address() -> None:
    config = json.loads(environment("evaluator-0")["TF_CONFIG"])
    assert config["task"] == {"type": "evaluator", "index": 0}
    assert set(config["cluster"]) == {"chief", "worker", "ps"}
    assert config["model_dir"] == "runs/1"


@pytest.mark.parametrize(
    ("processors", "threads", "inter"), [(8, "2", "2"), (16, "5", "5"), (2, "1", "2")]
)
def test_trainers_share_the_processors(processors: int, threads: str, inter: str) -> None:
    variables = environment("worker-1", machine=replace(MACHINE, processors=processors))
    assert variables["OMP_NUM_THREADS"] == variables["TF_NUM_INTRAOP_THREADS"] == threads
    assert variables["TF_NUM_INTEROP_THREADS"] == inter


def test_requested_number_of_threads_takes_precedence() -> None:
    machine = replace(MACHINE, environ={"OMP_NUM_THREADS": "7"})
    assert "OMP_NUM_THREADS" not in environment("ps-0", machine=machine)
    job = replace(JOB, threads=3)
    assert environment("ps-0", job, machine=machine)["OMP_NUM_THREADS"] == "3"
    assert environment("ps-0", job, share=False)["OMP_NUM_THREADS"] == "3"


def test_variables_of_the_user_are_kept() -> None:
    machine = replace(MACHINE, environ={"TF_ENABLE_ONEDNN_OPTS": "0"})
    assert "TF_ENABLE_ONEDNN_OPTS" not in environment("chief-0", machine=machine)


def test_no_share_sets_neither_threads_nor_gpus() -> None:
    machine = replace(MACHINE, gpus=("0",))
    variables = environment("chief-0", machine=machine, share=False)
    assert not {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"} & set(variables)


def shares(gpus: tuple[str, ...]) -> dict[str, str]:
    plan = launcher(replace(MACHINE, gpus=gpus)).plan(JOB)
    return {str(each.task): each.environment["CUDA_VISIBLE_DEVICES"] for each in plan.tasks}


def test_gpus_are_assigned_to_trainers_and_evaluators() -> None:
    enough = {"chief-0": "0,4", "worker-0": "1", "worker-1": "2", "evaluator-0": "3", "ps-0": ""}
    assert shares(("0", "1", "2", "3", "4")) == enough
    few = {"chief-0": "0", "worker-0": "1", "worker-1": "0", "evaluator-0": "1", "ps-0": ""}
    assert shares(("0", "1")) == few


def test_plan_is_deterministic() -> None:
    assert launcher().plan(JOB) == launcher().plan(JOB)


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (replace(JOB, chief=False, workers=0, ps=0), "nobody trains"),
        (replace(JOB, workers=0), "1 ps but no worker"),
        (replace(JOB, model_dir=""), "the model directory is empty"),
        (replace(JOB, program=Program(ProgramKind.COMMAND, "x", ("{rank}",))), "{rank}"),
    ],
)
def test_invalid_job_is_rejected(job: Job, said: str) -> None:
    with pytest.raises(JobError, match=said):
        launcher().plan(job)
