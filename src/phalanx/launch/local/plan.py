"""From a job to what each local process is started with: a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phalanx.cluster.spec import Role, Task
from phalanx.cluster.tf_config import VARIABLE
from phalanx.launch.environment import DEFAULTS, tf_config_variables, thread_variables
from phalanx.launch.job import Job
from phalanx.launch.local.machine import Machine
from phalanx.launch.placeholders import check_placeholders, fill
from phalanx.launch.processes.guardian import MARK, TASK_MARK
from phalanx.launch.processes.plan import TaskPlan


def plan_tasks(
    job: Job, machine: Machine, ports: Sequence[int], log_dir: Path, share: bool, run_id: str
) -> tuple[TaskPlan, ...]:
    """What each task of the job is started with. There is a port for each but the evaluators."""
    job.validate()
    check_placeholders(job.program.arguments)
    tasks = job.tasks()
    cluster = job.cluster([f"127.0.0.1:{port}" for port in ports])
    gpus = _share_gpus(tasks, machine.gpus) if share else {}
    defaults = dict(DEFAULTS)
    if share:
        defaults |= thread_variables(_share_processors(tasks, machine.processors))
    asked = dict(job.environment)
    if job.threads:
        asked |= thread_variables(job.threads)
    common = {name: text for name, text in defaults.items() if name not in machine.environ} | asked
    start = job.program.start(machine.python)
    return tuple(
        TaskPlan(
            task,
            (*start, *(fill(argument, task, cluster) for argument in job.program.arguments)),
            {
                VARIABLE: text,
                **({"CUDA_VISIBLE_DEVICES": ",".join(gpus[task])} if gpus else {}),
                **common,
                MARK: run_id,
                TASK_MARK: str(task),
            },
            log_dir / f"{task}.log",
        )
        for task, text in tf_config_variables(cluster, tasks, job.model_dir)
    )


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
