"""What every launcher is: `plan` is a pure function of the job, `submit` carries the plan out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Protocol, Self, TypeVar

from phalanx.cluster.spec import Task
from phalanx.launch.job import Job


class TaskState(Enum):
    """Where a task is in its life."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True)
class TaskStatus:
    """A task as it is now. `exit_code` is minus the signal's number if a signal ended it."""

    task: Task
    state: TaskState
    restarts: int = 0
    exit_code: int | None = None
    last_line: str = ""

    def dump(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "task": str(self.task), "state": self.state.value}

    @classmethod
    def load(cls, entry: Mapping[str, Any]) -> TaskStatus:
        """From plain data."""
        own = {"task": Task.parse(entry["task"]), "state": TaskState(entry["state"])}
        return cls(**{**entry, **own})


@dataclass(frozen=True)
class JobResult:
    """How a job ended: `exit_code` is 0 if it succeeded, and `reason` says why in a sentence."""

    exit_code: int
    reason: str
    failed: Task | None = None
    last_lines: tuple[str, ...] = ()

    def describe(self) -> str:
        """In words."""
        return "succeeded" if self.exit_code == 0 else f"failed: {self.reason}"

    def dump(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "failed": self.failed and str(self.failed)}

    @classmethod
    def load(cls, entry: Mapping[str, Any]) -> JobResult:
        """From plain data."""
        failed = entry["failed"] and Task.parse(entry["failed"])
        return cls(**{**entry, "failed": failed, "last_lines": tuple(entry["last_lines"])})


class Plan(Protocol):
    """Exactly what would be submitted."""

    def render(self) -> str:
        """The plan as text: what `--dry-run` prints."""
        ...


class Handle(Protocol):
    """A submitted job."""

    def status(self) -> list[TaskStatus]:
        """Every task as it is now."""
        ...

    def logs(self, task: Task, follow: bool = False) -> Iterator[str]:
        """The task's output so far, line by line; with `follow`, until it is over."""
        ...

    def cancel(self) -> None:
        """Ask the job to end; `wait` tells when it has."""
        ...

    def wait(self, timeout: float | None = None) -> JobResult | None:
        """How the job ended; None if it goes on after `timeout` seconds."""
        ...


class LastingHandle(Handle, Protocol):
    """A job that outlives the process that submitted it."""

    def facts(self) -> Mapping[str, Any]:
        """What its launcher's `attach` needs to find it again, as plain data."""
        ...


def poll(
    look: Callable[[], JobResult | None], timeout: float | None, every: float
) -> JobResult | None:
    """Look until there is a result; None if there is none after `timeout` seconds."""
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    while (result := look()) is None and time.monotonic() < deadline:
        time.sleep(every)
    return result


PlanT = TypeVar("PlanT", bound=Plan)


class Launcher(Protocol[PlanT]):
    """Puts the tasks of a job somewhere."""

    def plan(self, job: Job) -> PlanT:
        """What would be done for the job. Touches nothing."""
        ...

    def submit(self, plan: PlanT) -> Handle:
        """Do it."""
        ...


class LastingLauncher(Protocol[PlanT]):
    """A launcher whose jobs go on by themselves, and can be found again."""

    def plan(self, job: Job) -> PlanT:
        """What would be done for the job. Touches nothing."""
        ...

    def submit(self, plan: PlanT) -> LastingHandle:
        """Do it; whatever goes wrong, nothing of the job stays."""
        ...

    @classmethod
    def attach(cls: type[Self], facts: Mapping[str, Any]) -> LastingHandle:
        """The job with these facts, submitted by another process perhaps."""
        ...
