"""What is started: a command for each task, and how they are ended."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from phalanx.cluster.spec import Task
from phalanx.launch.rules import Patience

GRACE_SECONDS = Patience.grace
LINGER_SECONDS = Patience.linger
EVALUATOR_LINGER_SECONDS = Patience.evaluator_linger


@dataclass(frozen=True)
class TaskPlan:
    """One process: its command, what is added to the environment, and where its output goes."""

    task: Task
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path

    def render(self) -> str:
        """The command as it could be typed into a shell of its own."""
        return "\n".join(
            [
                f"# {self.task}, output in {self.log}",
                *(f"{name}={shlex.quote(text)} \\" for name, text in self.environment.items()),
                shlex.join(self.argv),
            ]
        )


@dataclass(frozen=True)
class ProcessPlan:
    """The processes of a job, how they are ended, and the commands that tidy up after them."""

    tasks: tuple[TaskPlan, ...]
    run_id: str
    restarts: int = 0
    grace: float = GRACE_SECONDS
    linger: float = LINGER_SECONDS
    evaluator_linger: float = EVALUATOR_LINGER_SECONDS
    time_limit: float | None = None
    cleanup: tuple[tuple[str, ...], ...] = ()

    def patience(self) -> Patience:
        """How long tasks are waited for."""
        return Patience(self.grace, self.linger, self.evaluator_linger)

    def render(self) -> str:
        """A shell command for each task."""
        return "\n\n".join(plan.render() for plan in self.tasks)
