"""What each local process would be started with: compared whole."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx import JobError
from phalanx.launch.backends.local import LocalLauncher
from phalanx.launch.backends.local.machine import Machine, _count_processors, _find_gpus
from phalanx.launch.job import Job, Program, ProgramKind

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


def test_the_rendered_plan_is_what_could_be_typed_into_a_shell() -> None:
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


def test_the_chief_is_told_of_the_evaluator() -> None:
    assert environment("chief-0")["PHALANX_SHAPE"] == "chief=1,worker=2,ps=1,evaluator=1"


def test_an_evaluator_has_a_task_and_no_address() -> None:
    config = json.loads(environment("evaluator-0")["TF_CONFIG"])
    assert config["task"] == {"type": "evaluator", "index": 0}
    assert set(config["cluster"]) == {"chief", "worker", "ps"}
    assert config["model_dir"] == "runs/1"


@pytest.mark.parametrize(
    ("processors", "threads", "inter"), [(8, "2", "2"), (16, "5", "5"), (2, "1", "2")]
)
def test_processors_are_shared_among_those_who_train(
    processors: int, threads: str, inter: str
) -> None:
    variables = environment("worker-1", machine=replace(MACHINE, processors=processors))
    assert variables["OMP_NUM_THREADS"] == variables["TF_NUM_INTRAOP_THREADS"] == threads
    assert variables["TF_NUM_INTEROP_THREADS"] == inter


def test_a_number_of_threads_that_was_asked_for_weighs_most() -> None:
    machine = replace(MACHINE, environ={"OMP_NUM_THREADS": "7"})
    assert "OMP_NUM_THREADS" not in environment("ps-0", machine=machine)
    job = replace(JOB, threads=3)
    assert environment("ps-0", job, machine=machine)["OMP_NUM_THREADS"] == "3"
    assert environment("ps-0", job, share=False)["OMP_NUM_THREADS"] == "3"


def test_what_the_user_has_set_stays() -> None:
    machine = replace(MACHINE, environ={"TF_ENABLE_ONEDNN_OPTS": "0"})
    assert "TF_ENABLE_ONEDNN_OPTS" not in environment("chief-0", machine=machine)


def test_nothing_is_shared_out_if_that_is_not_wanted() -> None:
    machine = replace(MACHINE, gpus=("0",))
    variables = environment("chief-0", machine=machine, share=False)
    assert not {"OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"} & set(variables)


def shares(gpus: tuple[str, ...]) -> dict[str, str]:
    plan = launcher(replace(MACHINE, gpus=gpus)).plan(JOB)
    return {str(each.task): each.environment["CUDA_VISIBLE_DEVICES"] for each in plan.tasks}


def test_gpus_are_dealt_out_to_those_who_compute() -> None:
    enough = {"chief-0": "0,4", "worker-0": "1", "worker-1": "2", "evaluator-0": "3", "ps-0": ""}
    assert shares(("0", "1", "2", "3", "4")) == enough
    few = {"chief-0": "0", "worker-0": "1", "worker-1": "0", "evaluator-0": "1", "ps-0": ""}
    assert shares(("0", "1")) == few


def test_gpus_are_those_that_are_visible(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert _find_gpus({}, tmp_path) == ("0", "2", "10")
    assert _find_gpus({"CUDA_VISIBLE_DEVICES": "GPU-a, 3"}, tmp_path) == ("GPU-a", "3")
    assert _find_gpus({"CUDA_VISIBLE_DEVICES": "-1"}, tmp_path) == ()


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    limit = tmp_path / "cpu.max"
    everything = _count_processors(limit)
    limit.write_text("50000 100000\n")
    assert _count_processors(limit) == 1
    limit.write_text("max 100000\n")
    assert _count_processors(limit) == everything


def test_the_same_job_gives_the_same_plan() -> None:
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
def test_a_job_that_cannot_work_is_refused(job: Job, said: str) -> None:
    with pytest.raises(JobError, match=said):
        launcher().plan(job)
