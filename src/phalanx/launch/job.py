"""What to launch: a program, the shape of its cluster, and what its tasks need."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from phalanx.cluster.spec import PEERS, Cluster, Role, Task
from phalanx.errors import JobError
from phalanx.launch.placeholders import check_placeholders


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
class Resources:
    """What one task needs: processors, bytes of memory, GPUs. None leaves it to the manager."""

    cpus: float | None = None
    memory: int | None = None
    gpus: int = 0


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
    resources: Mapping[Role, Resources] = field(default_factory=dict)
    time_limit: float | None = None
    data_workers: int = 0

    def counts(self) -> dict[Role, int]:
        """How many tasks of each role there are; roles without any are left out."""
        counts = {
            Role.CHIEF: int(self.chief),
            Role.WORKER: self.workers,
            Role.PS: self.ps,
            Role.EVALUATOR: self.evaluators,
        }
        return {role: count for role, count in counts.items() if count}

    def needs(self, role: Role) -> Resources:
        """What each task of this role needs."""
        return self.resources.get(role, Resources())

    def tasks(self) -> list[Task]:
        """Every task, evaluators last."""
        return [
            Task(role, index) for role, count in self.counts().items() for index in range(count)
        ]

    def data_tasks(self) -> list[Task]:
        """Those that serve data, beside the cluster: a dispatcher and the data workers."""
        workers = [Task(Role.DATA_WORKER, index) for index in range(self.data_workers)]
        return [Task(Role.DISPATCHER), *workers] if workers else []

    def all_tasks(self) -> list[Task]:
        """Every process there is."""
        return self.tasks() + self.data_tasks()

    def all_counts(self) -> dict[Role, int]:
        """How many processes of each role there are; those that serve data come last."""
        return dict(Counter(task.role for task in self.all_tasks()))

    def listening(self) -> list[Task]:
        """Those that need an address: all but the evaluators."""
        return [task for task in self.all_tasks() if task.role is not Role.EVALUATOR]

    def cluster(self, addresses: Mapping[Task, str]) -> Cluster:
        """What TF_CONFIG tells, of the addresses of those that listen."""
        return Cluster({task: at for task, at in addresses.items() if task.role in PEERS})

    def validate(self) -> None:
        """Raise a JobError if no launcher could run this."""
        check_placeholders(self.program.arguments)
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


_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


def check_name(name: str) -> None:
    """Raise a JobError unless every manager takes this as a job's name."""
    if not _NAME.fullmatch(name):
        raise JobError(
            f"{name!r} cannot be a job's name: take up to 40 small letters, digits and hyphens, "
            "with a letter first and no hyphen last (--name)"
        )


def make_name(program: str) -> str:
    """A name for a job that was given none, from its program's.

    >>> make_name("src/Train_model.py")
    'train-model'
    """
    last = re.split(r"[/.]", program.removesuffix(".py"))[-1]
    return re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-0123456789")[:40].rstrip("-") or "job"
