"""What is started: a command for each task, and how they are ended."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.cluster.spec import Task
from phalanx.launch.rules import Patience


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
    patience: Patience = field(default_factory=Patience)
    time_limit: float | None = None
    cleanup: tuple[tuple[str, ...], ...] = ()

    def render(self) -> str:
        """A shell command for each task."""
        return "\n\n".join(plan.render() for plan in self.tasks)
