"""The interfaces of a backend: `Launcher`, `Plan` and `Handle`.

`plan` is a pure function of the job, and `submit` carries the plan out. A class that has these
methods is a launcher; there is nothing to inherit from.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from phalanx.cluster.spec import Task
from phalanx.launch.job import Job

# What a launcher needs to find a job again. It is stored as JSON.
Facts = Mapping[str, Any]


class TaskState(Enum):
    """The state of a task. `ENDED` means that the job, not the program, ended the task."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    ENDED = "ended"


@dataclass(frozen=True)
class TaskStatus:
    """The status of a task.

    `exit_code` is minus the number of the signal if a signal ended the task. `last_line` is the
    last line of its output or, while it waits, the reason.
    """

    task: Task
    state: TaskState
    restarts: int = 0
    exit_code: int | None = None
    last_line: str = ""

    def dump(self) -> dict[str, Any]:
        """Return the status as plain data."""
        return {**asdict(self), "task": str(self.task), "state": self.state.value}

    @classmethod
    def load(cls, entry: Mapping[str, Any]) -> Self:
        """Return the status that `dump` has made plain data of."""
        task, state = Task.parse(entry["task"]), TaskState(entry["state"])
        return cls(**{**entry, "task": task, "state": state})


@dataclass(frozen=True)
class JobResult:
    """How a job ended: `last_lines` are those of the task that failed, if one did."""

    exit_code: int
    reason: str
    failed: Task | None = None
    last_lines: tuple[str, ...] = ()

    def describe(self) -> str:
        """Describe the result in a few words."""
        return "succeeded" if self.exit_code == 0 else f"failed: {self.reason}"

    def dump(self) -> dict[str, Any]:
        """Return the result as plain data."""
        return {**asdict(self), "failed": self.failed and str(self.failed)}

    @classmethod
    def load(cls, entry: Mapping[str, Any]) -> Self:
        """Return the result that `dump` has made plain data of."""
        failed = entry["failed"] and Task.parse(entry["failed"])
        return cls(**{**entry, "failed": failed, "last_lines": tuple(entry["last_lines"])})


class Plan(Protocol):
    """Exactly what a launcher would submit."""

    def render(self) -> str:
        """Return the plan as text, which `--dry-run` prints."""
        ...


class Handle(Protocol):
    """A submitted job."""

    def status(self) -> list[TaskStatus]:
        """Return the status of every task."""
        ...

    def logs(self, task: Task, follow: bool = False) -> Iterator[str]:
        """Yield the output of a task.

        Args:
            task: The task.
            follow: Whether to wait for more output until the job is over.

        Yields:
            The lines, without their line breaks.

        Raises:
            OutputGoneError: The backend has deleted the output.
        """
        ...

    def cancel(self) -> None:
        """Ask the job to end, without waiting for it."""
        ...

    def wait(self, timeout: float | None = None) -> JobResult | None:
        """Wait until the job is over.

        Args:
            timeout: How many seconds to wait. None waits without a limit.

        Returns:
            How the job ended, or None if it still runs after `timeout`.
        """
        ...


@runtime_checkable
class ReportingHandle(Protocol):
    """A job whose backend reports more than the output of its tasks."""

    def reports(self) -> Iterator[str]:
        """Yield why tasks do not start, as it changes, until the job is over."""
        ...


@runtime_checkable
class ElasticHandle(Protocol):
    """A job whose number of workers may change while it runs."""

    def membership_directory(self) -> Path:
        """Return where the job keeps the state of its membership, and takes requests."""
        ...


class LastingHandle(Handle, Protocol):
    """A job that outlives the process that submitted it."""

    def facts(self) -> Facts:
        """Return what the launcher's `attach` needs to find the job again, as plain data."""
        ...


PlanT = TypeVar("PlanT", bound=Plan)


class Launcher(Protocol[PlanT]):
    """Runs the tasks of a job on a backend."""

    def plan(self, job: Job) -> PlanT:
        """Return what `submit` would do for a job, without side effects.

        Raises:
            JobError: The backend cannot run the job.
        """
        ...

    def submit(self, plan: PlanT) -> Handle:
        """Start the tasks.

        Raises:
            JobError: The job was not started, and nothing of it is left.
        """
        ...


class LastingLauncher(Launcher[PlanT], Protocol[PlanT]):
    """A launcher whose jobs outlive the process that submitted them."""

    def submit(self, plan: PlanT) -> LastingHandle:
        """Start the tasks.

        Raises:
            JobError: The job was not started, and nothing of it is left.
        """
        ...

    @classmethod
    def attach(cls: type[Self], facts: Facts) -> LastingHandle:
        """Return the handle of a job that was submitted before, perhaps by another process.

        Args:
            facts: What `LastingHandle.facts` returned.
        """
        ...


def poll(
    look: Callable[[], JobResult | None], timeout: float | None, every: float
) -> JobResult | None:
    """Call `look` until it returns a result or the time is up.

    Args:
        look: Returns the result of the job, or None if it still runs.
        timeout: How many seconds to wait. None waits without a limit.
        every: The seconds between two calls.

    Returns:
        The result, or None if there is none after `timeout`.
    """
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    while (result := look()) is None and time.monotonic() < deadline:
        time.sleep(every)
    return result
