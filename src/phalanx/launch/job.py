"""What to launch: a program, and the shape of its cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from phalanx.cluster.spec import Cluster, Role, Task
from phalanx.errors import JobError


class ProgramKind(Enum):
    """How a program is started."""

    FILE = "file"
    MODULE = "module"
    COMMAND = "command"


@dataclass(frozen=True)
class Program:
    """What every task runs. `{role}` and the like in the arguments stand for the task's own values.

    >>> Program(ProgramKind.MODULE, "trainer.main", ("--job_name={role}",)).start("python3")
    ['python3', '-m', 'trainer.main']
    """

    kind: ProgramKind
    target: str
    arguments: tuple[str, ...] = ()

    def start(self, python: str = "python") -> list[str]:
        """The command line up to its arguments, with this interpreter for a file or module."""
        starts = {
            ProgramKind.FILE: [python, self.target],
            ProgramKind.MODULE: [python, "-m", self.target],
            ProgramKind.COMMAND: [self.target],
        }
        return starts[self.kind]


@dataclass(frozen=True)
class Job:
    """A program and the cluster it is to run on, whatever starts it."""

    name: str
    program: Program
    chief: bool = True
    workers: int = 0
    ps: int = 0
    evaluators: int = 0
    model_dir: str | None = None
    restarts: int = 0
    threads: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def tasks(self) -> list[Task]:
        """Every task, evaluators last."""
        counts = {
            Role.CHIEF: int(self.chief),
            Role.WORKER: self.workers,
            Role.PS: self.ps,
            Role.EVALUATOR: self.evaluators,
        }
        return [Task(role, index) for role in Role for index in range(counts[role])]

    def cluster(self, addresses: Sequence[str]) -> Cluster:
        """The cluster, given one address for each task but the evaluators, which need none."""
        members = [task for task in self.tasks() if task.role is not Role.EVALUATOR]
        return Cluster(dict(zip(members, addresses, strict=True)))

    def validate(self) -> None:
        """Raise a JobError if no launcher could run this."""
        if not self.chief and not self.workers:
            raise JobError(
                "without a chief and without workers nobody trains: "
                "leave out --no-chief, or add --workers 1"
            )
        if self.model_dir == "":
            raise JobError("the model directory is empty: name one, or leave out --model-dir")
        if self.ps and not self.workers:
            raise JobError(
                f"{self.ps} ps but no worker: parameter servers serve workers; "
                "add --workers 1, or leave out --ps"
            )
