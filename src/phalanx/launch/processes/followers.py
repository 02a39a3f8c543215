"""Local processes that each follow one task that something else runs."""

from collections.abc import Callable, Sequence
from pathlib import Path

from phalanx.cluster.spec import Task
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan
from phalanx.launch.termination import GracePeriods


def plan_followers(
    tasks: Sequence[Task],
    follow: Callable[[Task], tuple[str, ...]],
    directory: Path,
    run_id: str,
    *,
    restarts: int,
    grace: float,
    time_limit: float | None,
    cleanup: tuple[tuple[str, ...], ...] = (),
) -> ProcessPlan:
    """Return a plan in which `follow(task)` is the command that follows a task."""
    plans = tuple(
        TaskPlan(
            task,
            follow(task),
            {RUN_ID_VARIABLE: run_id, TASK_VARIABLE: str(task)},
            directory / f"{task}.log",
            is_relay=True,
        )
        for task in tasks
    )
    return ProcessPlan(plans, run_id, restarts, GracePeriods(grace), time_limit, cleanup)
