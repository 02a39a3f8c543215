"""What to launch: a program, the shape of its cluster, and the resources of its tasks."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Self

from phalanx.cluster.spec import PEERS, Cluster, Role, Task
from phalanx.errors import JobError
from phalanx.launch.placeholders import check_placeholders
from phalanx.launch.values import has_control_characters, is_variable

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


class ProgramKind(Enum):
    FILE = "file"
    MODULE = "module"
    COMMAND = "command"


@dataclass(frozen=True)
class Program:
    """The program that every task runs. Placeholders such as `{role}` are allowed in arguments.

    With `tf1` it is a TensorFlow 1 program, which `phalanx.compat.tf1` runs.
    """

    kind: ProgramKind
    target: str
    arguments: tuple[str, ...] = ()
    tf1: bool = False

    def command(self, python: str = "python") -> list[str]:
        """Return the command without its arguments, with this interpreter for a file or module."""
        start = [python, "-m", "phalanx.compat.tf1"] if self.tf1 else [python]
        commands = {
            ProgramKind.FILE: [*start, self.target],
            ProgramKind.MODULE: [*start, "-m", self.target],
            ProgramKind.COMMAND: [self.target],
        }
        return commands[self.kind]


@dataclass(frozen=True)
class Resources:
    """What one task needs: CPUs, bytes of memory, GPUs. With None the backend decides."""

    cpus: float | None = None
    memory: int | None = None
    gpus: int = 0


@dataclass(frozen=True)
class Job:
    """A program and the cluster that it runs on, independent of the backend.

    Each task may be restarted `restarts` times. `time_limit` is in seconds. With `master`,
    TF_CONFIG is that of Cloud ML: the chief is called `master`, and the environment is `cloud`.
    `secrets` are variables whose values are not in the job: it names the file or the secret of the
    backend that has them. An elastic job has from `min_workers` to `max_workers` workers, and
    `workers` of them to begin with.
    """

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
    master: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict)
    min_workers: int | None = None
    max_workers: int | None = None

    def dump(self) -> dict[str, Any]:
        """Return the job as plain data."""
        resources = {str(role): asdict(needs) for role, needs in self.resources.items()}
        program = {**asdict(self.program), "kind": self.program.kind.value}
        return {**asdict(self), "program": program, "resources": resources}

    @classmethod
    def load(cls, content: Mapping[str, Any]) -> Self:
        """Return the job that `dump` has made plain data of."""
        found = content["program"]
        program = Program(
            **{**found, "kind": ProgramKind(found["kind"]), "arguments": tuple(found["arguments"])}
        )
        resources = {Role(role): Resources(**needs) for role, needs in content["resources"].items()}
        return cls(**{**content, "program": program, "resources": resources})

    @property
    def is_elastic(self) -> bool:
        """Whether the number of workers may change while the job runs."""
        return self.min_workers is not None or self.max_workers is not None

    def largest(self) -> Self:
        """Return this job with as many workers as it may ever have, and none more or less."""
        workers = max(self.workers, self.max_workers or 0)
        return replace(self, workers=workers, min_workers=None, max_workers=None)

    def with_members(self, members: Sequence[Task]) -> tuple[Self, dict[Task, Task]]:
        """Return a generation of this job as a job of its own, and the slot of each task.

        Args:
            members: The slots of the trainers, in the order of their ranks.
        """
        workers = len(members) - int(self.chief)
        # Every task of an elastic job may be started again, also without a budget of restarts.
        restarts = self.restarts or int(self.is_elastic)
        job = replace(self, workers=workers, min_workers=None, max_workers=None, restarts=restarts)
        slots = dict(zip(job.trainers(), members, strict=True))
        return job, {task: slots.get(task, task) for task in job.all_tasks()}

    def needs(self, role: Role) -> Resources:
        return self.resources.get(role, Resources())

    def tasks(self) -> list[Task]:
        """Return the tasks of the training cluster, evaluators last."""
        return make_tasks(self._counts())

    def trainers(self) -> list[Task]:
        """Return the tasks that train: the chief and the workers."""
        return [task for task in self.tasks() if task.role in (Role.CHIEF, Role.WORKER)]

    def data_tasks(self) -> list[Task]:
        """Return the tasks of tf.data service: a dispatcher and the data workers, if any."""
        workers = make_tasks({Role.DATA_WORKER: self.data_workers})
        return [Task(Role.DISPATCHER), *workers] if workers else []

    def all_tasks(self) -> list[Task]:
        """Return every task of the job, those of tf.data service last."""
        return self.tasks() + self.data_tasks()

    def counts(self) -> dict[Role, int]:
        """Return the number of tasks of each role of the training cluster that has any."""
        return dict(Counter(task.role for task in self.tasks()))

    def all_counts(self) -> dict[Role, int]:
        """Return the number of tasks of each role that has any, in the order of `all_tasks`."""
        return dict(Counter(task.role for task in self.all_tasks()))

    def listening_tasks(self) -> list[Task]:
        """Return the tasks that need an address: all but the evaluators."""
        return [task for task in self.all_tasks() if task.role is not Role.EVALUATOR]

    def cluster(self, addresses: Mapping[Task, str]) -> Cluster:
        """Return the cluster of TF_CONFIG: of these addresses, those of chief, workers and ps."""
        return Cluster({task: at for task, at in addresses.items() if task.role in PEERS})

    def validate(self, *, can_scale: bool = False) -> None:
        """Raise a JobError if no backend can run this job.

        Args:
            can_scale: Whether the backend can change the number of workers while the job runs.
        """
        check_placeholders(self.program.arguments)
        if self.program.tf1 and self.program.kind is ProgramKind.COMMAND:
            raise JobError(
                f"--tf1 needs a Python program, and {self.program.target} is a command: name the "
                "file, or -m MODULE, or call python -m phalanx.compat.tf1 in the command yourself"
            )
        if self.master and not self.chief:
            raise JobError("--master names the chief, and --no-chief leaves it out: drop one")
        check_counts(self._counts())
        if self.is_elastic and not can_scale:
            raise JobError(
                "this backend cannot change the number of workers of a running job: leave out "
                "--min-workers and --max-workers"
            )
        if self.is_elastic:
            self._check_elastic()
        if self.model_dir is not None:
            _check_model_dir(self.model_dir)
        for text in (self.program.target, *self.program.arguments):
            if "\0" in text:
                raise JobError(f"{text!r} has a null character, which no program can be given")
        for name, text in self.environment.items():
            # Without the value, which may be a secret. Other names would have to be set on command
            # lines, which all users of a host can see.
            if not is_variable(name):
                raise JobError(f"{name!r} cannot be the name of a variable: use letters, digits "
                               "and underscores, no digit first (--env)")  # fmt: skip
            if "\0" in text:
                raise JobError(f"the value of {name} has a null character, which no program can "
                               "be given")  # fmt: skip
        both = sorted(self.environment.keys() & self.secrets.keys())
        if both:
            raise JobError(f"{both[0]} is set by --env and by --env-from-secret: leave one out")

    def _check_elastic(self) -> None:
        low = self.workers if self.min_workers is None else self.min_workers
        high = self.workers if self.max_workers is None else self.max_workers
        if not low <= self.workers <= high:
            raise JobError(
                f"--workers is {self.workers}, --min-workers is {low}, --max-workers is {high}: "
                "they must not decrease in the order minimum, workers, maximum"
            )
        if low < 1 and (self.ps or not self.chief):
            need = "parameter servers serve workers" if self.ps else "there is no chief"
            raise JobError(f"--min-workers is {low}, and {need}: set it to at least 1")
        if self.data_workers:
            raise JobError(
                "--data-workers cannot be combined with --min-workers or --max-workers: the data "
                "service does not know which examples the trainers of another number have read"
            )

    def _counts(self) -> dict[Role, int]:
        return cluster_counts(self.chief, self.workers, self.ps, self.evaluators)


def cluster_counts(chief: bool, workers: int, ps: int, evaluators: int) -> dict[Role, int]:
    """Return the number of tasks of each role, in the order of the cluster."""
    return {Role.CHIEF: int(chief), Role.WORKER: workers, Role.PS: ps, Role.EVALUATOR: evaluators}


def make_tasks(counts: Mapping[Role, int]) -> list[Task]:
    return [Task(role, index) for role, count in counts.items() for index in range(count)]


def check_counts(counts: Mapping[Role, int]) -> None:
    for role, count in counts.items():
        if count < 0:
            raise JobError(f"{role} is {count}: it must be at least 0")
    if not counts[Role.CHIEF] and not counts[Role.WORKER]:
        raise JobError(
            "without a chief and without workers nobody trains: keep the chief, or set workers to "
            "at least 1"
        )
    if counts[Role.PS] and not counts[Role.WORKER]:
        raise JobError(
            f"{counts[Role.PS]} ps but no worker: parameter servers serve workers; set workers to "
            "at least 1, or leave out ps"
        )


def _check_model_dir(path: str) -> None:
    if not path:
        raise JobError("the model directory is empty: name one, or leave out --model-dir")
    if path.startswith("-") or has_control_characters(path):
        raise JobError(f"{path!r} cannot be a model directory: write ./{path} if its name begins "
                       "with a hyphen; it cannot have control characters")  # fmt: skip


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise JobError(
            f"{name!r} cannot be a job's name: use at most 40 lower-case letters, digits and "
            "hyphens, with a letter first and no hyphen last (--name)"
        )


def make_name(program: str) -> str:
    """Derive the name of a job from its program's, as train-model from src/Train_model.py."""
    last = re.split(r"[/.]", program.removesuffix(".py"))[-1]
    return re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-0123456789")[:40].rstrip("-") or "job"
