"""The plan of a job whose tasks are processes on this machine."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from phalanx.cluster.spec import Task
from phalanx.launch.processes.generations import ElasticSize
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE
from phalanx.launch.processes.rotating_log import DEFAULT_LIMIT
from phalanx.launch.secrets import read_secret
from phalanx.launch.termination import GracePeriods


@dataclass(frozen=True)
class TaskPlan:
    """The process of one task, with what is added to its environment, and the file of its output.

    `secrets` are variables whose values are read from these files when the process starts.
    A relay represents a task elsewhere, and exits with 128 + n if signal n has ended that task.
    A Python program that imports the modules in `preload` may be forked from a process that has.
    A relay that gets `kill_signal` kills its task; without one, the process itself is killed.
    The progress that a task prints is written to `progress_file`.
    """

    task: Task
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    is_relay: bool = False
    secrets: Mapping[str, str] = field(default_factory=dict)
    rank: Task | None = None
    """What the process is called in TF_CONFIG, if that is not the name of its slot."""
    preload: tuple[str, ...] = ()
    kill_signal: int | None = None
    progress_file: Path | None = None

    def read_environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the whole environment of the process, which is added to `environ`."""
        secrets = {name: read_secret(path) for name, path in self.secrets.items()}
        return {**environ, **self.environment, **secrets}

    def render(self) -> str:
        """Render the command as it could be typed into a shell."""
        return "\n".join(
            [
                f"# {self.task}, output in {self.log}",
                *(f"{name}={shlex.quote(text)} \\" for name, text in self.environment.items()),
                *(f'{name}="$(cat {shlex.quote(path)})" \\' for name, path in self.secrets.items()),
                shlex.join(self.argv),
            ]
        )


MakeTasks: TypeAlias = Callable[[Sequence[Task]], tuple[TaskPlan, ...]]


@dataclass(frozen=True)
class ElasticPlan:
    """How the number of trainers may change while the job runs.

    Attributes:
        size: The slots of the trainers, and how many of them are used.
        make_tasks: Returns the tasks of a job by the slots of its trainers, in this order.
        directory: Where the state of the job is written, and requests of `phalanx scale` are read.
    """

    size: ElasticSize
    make_tasks: MakeTasks
    directory: Path


@dataclass(frozen=True)
class ProcessPlan:
    """The processes of a job, how they are ended, and the commands that run afterwards.

    In a job without a chief, the job fails when a worker is idle and silent for `silence_limit`
    seconds after another worker has succeeded. A log keeps the newest `log_limit` bytes.

    A task that is stopped for `stop_limit` seconds is killed. If the chief writes its progress to
    `progress_file`, and reports no step for `hang_limit` seconds, all trainers are killed.

    With `elastic`, `tasks` are those of the first generation.
    """

    tasks: tuple[TaskPlan, ...]
    run_id: str
    restarts: int = 0
    grace_periods: GracePeriods = field(default_factory=GracePeriods)
    time_limit: float | None = None
    cleanup: tuple[tuple[str, ...], ...] = ()
    silence_limit: float | None = None
    log_limit: int = DEFAULT_LIMIT
    stop_limit: float | None = 60.0
    hang_limit: float | None = None
    progress_file: str | None = None
    elastic: ElasticPlan | None = None

    def render(self) -> str:
        return "\n\n".join(plan.render() for plan in self.tasks)


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
    """Plan a process for each task that something else runs: `follow(task)` follows it."""
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
