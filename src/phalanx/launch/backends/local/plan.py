"""From a job to what each local process is started with: a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from phalanx.cluster.spec import Role, Task
from phalanx.launch.backends.local.machine import Machine
from phalanx.launch.job import Job
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE
from phalanx.launch.processes.plan import TaskPlan
from phalanx.launch.task_commands import DEFAULTS, make_task_commands, thread_variables


def plan_tasks(
    job: Job, machine: Machine, ports: Sequence[int], log_dir: Path, share: bool, run_id: str
) -> tuple[TaskPlan, ...]:
    """What each task of the job is started with. There is a port for each but the evaluators."""
    job.validate()
    tasks = job.all_tasks()
    listening_tasks = zip(job.listening_tasks(), ports, strict=True)
    addresses = {task: f"127.0.0.1:{port}" for task, port in listening_tasks}
    gpus = _share_gpus(tasks, machine.gpus) if share else {}
    defaults = dict(DEFAULTS)
    if share:
        defaults |= thread_variables(_share_processors(tasks, machine.processors))
    asked = dict(job.environment)
    if job.threads:
        asked |= thread_variables(job.threads)
    common = {name: text for name, text in defaults.items() if name not in machine.environ} | asked
    return tuple(
        TaskPlan(
            start.task,
            start.command,
            {
                **start.variables,
                **({"CUDA_VISIBLE_DEVICES": ",".join(gpus[start.task])} if gpus else {}),
                **common,
                RUN_ID_VARIABLE: run_id,
                TASK_VARIABLE: str(start.task),
            },
            log_dir / f"{start.task}.log",
        )
        for start in make_task_commands(job, addresses, machine.python)
    )


def _trainers(tasks: Sequence[Task]) -> list[Task]:
    return [task for task in tasks if task.role in (Role.CHIEF, Role.WORKER)]


def _share_processors(tasks: Sequence[Task], processors: int) -> int:
    """Parameter servers and the evaluator work in the gaps the others leave."""
    busy = [task for task in tasks if task.role is Role.DATA_WORKER] + _trainers(tasks)
    return max(1, processors // len(busy))


def _share_gpus(tasks: Sequence[Task], gpus: Sequence[str]) -> dict[Task, list[str]]:
    """Dealt out in turn to those that compute; with too few, several tasks share one."""
    if not gpus:
        return {}
    computing = _trainers(tasks) + [task for task in tasks if task.role is Role.EVALUATOR]
    shares: dict[Task, list[str]] = {task: [] for task in tasks}
    for turn in range(max(len(gpus), len(computing))):
        shares[computing[turn % len(computing)]].append(gpus[turn % len(gpus)])
    return shares
