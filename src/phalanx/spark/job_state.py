"""Who still runs and who has to end now: the rules, without a clock and without a network.

- The job has succeeded when the chief has ended well or, without a chief, every worker has. Workers
  and evaluators may then finish by themselves for a while.
- When a task fails, the job has failed. Others that fail because of it may have been quicker, so
  its cause is looked for a moment longer.
- Parameter servers are asked to end last, so that a chief can still save what they hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from phalanx.cluster.spec import Role, Task
from phalanx.launch.termination import GracePeriods

CAUSE_SECONDS = 5.0


class Cause(IntEnum):
    """How near to the cause of a failed job a task's failure is; the lowest is told."""

    OWN = 0
    """It failed by itself."""
    TOLD = 1
    """Another task told it what has gone wrong there."""
    PEER = 2
    """Another task went away."""
    LOST = 3
    """Nothing is known but that it is gone."""


@dataclass(frozen=True)
class Failure:
    """Why a task failed; `is_final` if to try again is of no use."""

    task: Task
    text: str
    cause: Cause = Cause.OWN
    is_final: bool = False


class Ensemble:
    """The tasks of one job, and what became of them."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._running = set(tasks)
        self._asked: dict[Task, float] = {}
        self._failures: list[tuple[float, Failure]] = []
        self._succeeded_at: float | None = None
        has_chief = any(task.role is Role.CHIEF for task in tasks)
        leading = Role.CHIEF if has_chief else Role.WORKER
        self._leaders = {task for task in tasks if task.role is leading}

    @property
    def failure(self) -> Failure | None:
        """Why the job failed, as far as it is known."""
        causes = sorted(self._failures, key=lambda each: (each[1].cause, each[0]))
        return causes[0][1] if causes else None

    def is_running(self, task: Task) -> bool:
        """Whether the task has not ended yet."""
        return task in self._running

    def ended(self, task: Task, failure: Failure | None, now: float) -> None:
        """The task has ended; what happens to it after it was asked to is no failure."""
        self._running.discard(task)
        was_asked = task in self._asked
        if failure is not None and not was_asked and self._succeeded_at is None:
            self._failures.append((now, failure))
        self._leaders.discard(task)
        if not self._leaders and not self._failures and self._succeeded_at is None:
            self._succeeded_at = now

    def to_end(self, now: float) -> list[Task]:
        """Tasks to ask to end now; each is named once."""
        training = any(task.role in (Role.CHIEF, Role.WORKER) for task in self._running)
        due = [
            task
            for task in sorted(self._running - set(self._asked))
            if (not training if task.role is Role.PS else self._is_due(task, now))
        ]
        self._asked.update(dict.fromkeys(due, now))
        return due

    def is_over(self, now: float) -> bool:
        """Whether nobody runs any more, or those who do have had their time."""
        late = GracePeriods.grace + CAUSE_SECONDS
        return all(now > self._asked.get(task, now) + late for task in self._running)

    def _is_due(self, task: Task, now: float) -> bool:
        if self._failures:
            first = self._failures[0][0]
            return self._failure_is_clear() or now >= first + CAUSE_SECONDS
        if self._succeeded_at is None:
            return False
        evaluates = task.role is Role.EVALUATOR
        return now >= self._succeeded_at + (
            GracePeriods.evaluator_linger if evaluates else GracePeriods.linger
        )

    def _failure_is_clear(self) -> bool:
        return any(failure.cause is Cause.OWN for _, failure in self._failures)
