"""The state of a job on Spark: which tasks run, which must end now, and why the job has failed.

The rules of launch/termination.py apply. In addition, when a task fails because of another one, its
failure may be reported first; the tasks then run on for a moment, until the cause is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from phalanx.cluster.spec import Role, Task
from phalanx.launch.termination import GracePeriods, deciding_tasks, time_left

CAUSE_SECONDS = 5.0


class Cause(IntEnum):
    """How close a task's failure is to the cause of the job's failure; the lowest is reported."""

    ORIGIN = 0
    """The failure began in this task."""
    REPORTED = 1
    """Another task reported its failure to this one."""
    PEER = 2
    """Another task could not be reached."""
    LOST = 3
    """The connection to the task was lost."""


@dataclass(frozen=True)
class Failure:
    """Why a task failed; `is_final` if a restart cannot help."""

    task: Task
    text: str
    cause: Cause = Cause.ORIGIN
    is_final: bool = False


class JobState:
    """The tasks of one job. The time is passed in."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._running = set(tasks)
        self._deciding = set(deciding_tasks(tasks))
        self._end_requested_at: dict[Task, float] = {}
        self._failures: list[Failure] = []
        self._settled_at: float | None = None
        self._grace_periods = GracePeriods()

    @property
    def failure(self) -> Failure | None:
        """Why the job failed, as far as it is known."""
        return min(self._failures, key=lambda failure: failure.cause, default=None)

    def is_running(self, task: Task) -> bool:
        return task in self._running

    def task_ended(self, task: Task, failure: Failure | None, now: float) -> None:
        """Record the end of a task; after a request to end, or after success, it is no failure."""
        self._running.discard(task)
        self._deciding.discard(task)
        has_succeeded = self._settled_at is not None and not self._failures
        if failure is not None and task not in self._end_requested_at and not has_succeeded:
            self._failures.append(failure)
        if self._settled_at is None and (self._failures or not self._deciding):
            self._settled_at = now

    def tasks_to_end(self, now: float) -> list[Task]:
        """Return the tasks to end now; each task is returned once."""
        requested = self._end_requested_at
        due = [task for task in sorted(self._running - set(requested)) if self._is_due(task, now)]
        requested.update(dict.fromkeys(due, now))
        return due

    def is_over(self, now: float) -> bool:
        """Return whether no task runs any more, or those that do have exceeded their time."""
        late = self._grace_periods.grace + CAUSE_SECONDS
        requested = self._end_requested_at
        return all(now > requested.get(task, now) + late for task in self._running)

    def _is_due(self, task: Task, now: float) -> bool:
        if self._settled_at is None:
            return False
        has_failed = bool(self._failures)
        cause_unknown = has_failed and all(
            each.cause is not Cause.ORIGIN for each in self._failures
        )
        if cause_unknown and now < self._settled_at + CAUSE_SECONDS and task.role is not Role.PS:
            return False
        left = time_left(task, self._running, has_failed, self._grace_periods)
        return now >= self._settled_at + left
