"""From a job to what each local process is started with: a pure function."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.cluster.spec import Role, Task
from phalanx.cluster.tf_config import VARIABLE, TFConfig
from phalanx.launch.job import Job
from phalanx.launch.local.guardian import MARK, TASK_MARK
from phalanx.launch.local.machine import Machine
from phalanx.launch.placeholders import check_placeholders, fill


@dataclass(frozen=True)
class TaskPlan:
    """One process: its command, what is added to the environment, and where its output goes."""

    task: Task
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path


@dataclass(frozen=True)
class LocalPlan:
    """The processes of a job on this machine, and how they are ended."""

    tasks: tuple[TaskPlan, ...]
    run_id: str
    restarts: int
    grace: float
    linger: float
    evaluator_linger: float

    def render(self) -> str:
        """A shell command a task, each as it could be typed into a shell of its own."""
        return "\n\n".join(
            "\n".join(
                [
                    f"# {plan.task}, output in {plan.log}",
                    *(f"{name}={shlex.quote(text)} \\" for name, text in plan.environment.items()),
                    shlex.join(plan.argv),
                ]
            )
            for plan in self.tasks
        )


def plan_tasks(
    job: Job, machine: Machine, ports: Sequence[int], log_dir: Path, share: bool, run_id: str
) -> tuple[TaskPlan, ...]:
    """What each task of the job is started with. There is a port for each but the evaluators."""
    job.validate()
    check_placeholders(job.program.arguments)
    tasks = job.tasks()
    cluster = job.cluster([f"127.0.0.1:{port}" for port in ports])
    gpus = _share_gpus(tasks, machine.gpus) if share else {}
    defaults = {
        # oneDNN nearly doubles the speed of training on many CPUs, but is off by default.
        "TF_ENABLE_ONEDNN_OPTS": "1",
        # Warnings and errors: what TensorFlow logs below them drowns the program's own output.
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "PYTHONUNBUFFERED": "1",
    }
    if share:
        defaults |= _thread_variables(_share_processors(tasks, machine.processors))
    asked = dict(job.environment)
    if job.threads:
        asked |= _thread_variables(job.threads)
    common = {name: text for name, text in defaults.items() if name not in machine.environ} | asked
    start = job.program.start(machine.python)
    return tuple(
        TaskPlan(
            task,
            (*start, *(fill(argument, task, cluster) for argument in job.program.arguments)),
            {
                VARIABLE: TFConfig(cluster, task, model_dir=job.model_dir).dumps(),
                **({"CUDA_VISIBLE_DEVICES": ",".join(gpus[task])} if gpus else {}),
                **common,
                MARK: run_id,
                TASK_MARK: str(task),
            },
            log_dir / f"{task}.log",
        )
        for task in tasks
    )


def _thread_variables(threads: int) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        # With a single one, a TensorFlow server that waits for another never gets to answer.
        "TF_NUM_INTEROP_THREADS": str(max(2, threads)),
    }


def _trainers(tasks: Sequence[Task]) -> list[Task]:
    return [task for task in tasks if task.role in (Role.CHIEF, Role.WORKER)]


def _share_processors(tasks: Sequence[Task], processors: int) -> int:
    """Parameter servers and the evaluator work in the gaps the trainers leave."""
    return max(1, processors // len(_trainers(tasks)))


def _share_gpus(tasks: Sequence[Task], gpus: Sequence[str]) -> dict[Task, list[str]]:
    """Dealt out in turn to those that compute; with too few, several tasks share one."""
    if not gpus:
        return {}
    computing = _trainers(tasks) + [task for task in tasks if task.role is Role.EVALUATOR]
    shares: dict[Task, list[str]] = {task: [] for task in tasks}
    for turn in range(max(len(gpus), len(computing))):
        shares[computing[turn % len(computing)]].append(gpus[turn % len(gpus)])
    return shares
