"""The local launcher: every task is a process on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.cluster.spec import Task
from phalanx.errors import JobError
from phalanx.launch.base import JobResult, TaskStatus
from phalanx.launch.job import Job
from phalanx.launch.local.machine import Machine
from phalanx.launch.local.plan import LocalPlan, plan_tasks
from phalanx.launch.local.supervisor import Observer, Silent, Supervisor
from phalanx.limits import allow_open_files

GRACE_SECONDS = 30.0
LINGER_SECONDS = 10.0
EVALUATOR_LINGER_SECONDS = 600.0


@dataclass(frozen=True)
class LocalLauncher:
    """Starts the tasks of a job here.

    >>> from phalanx.launch.job import Job, Program, ProgramKind
    >>> job = Job("hello", Program(ProgramKind.COMMAND, "echo", ("{role}",)))
    >>> machine = Machine(processors=2, gpus=(), environ={}, python="python3")
    >>> launcher = LocalLauncher(machine, ports=(2222,), log_dir=Path("logs"), run_id="r1")
    >>> launcher.plan(job).tasks[0].argv
    ('echo', 'chief')
    """

    machine: Machine
    ports: Sequence[int]
    log_dir: Path
    run_id: str
    share: bool = True
    grace: float = GRACE_SECONDS
    linger: float = LINGER_SECONDS
    evaluator_linger: float = EVALUATOR_LINGER_SECONDS

    def plan(self, job: Job) -> LocalPlan:
        """What each task is started with, on the ports and with the machine given."""
        tasks = plan_tasks(job, self.machine, self.ports, self.log_dir, self.share, self.run_id)
        return LocalPlan(
            tasks, self.run_id, job.restarts, self.grace, self.linger, self.evaluator_linger
        )

    def submit(self, plan: LocalPlan, observer: Observer | None = None) -> LocalHandle:
        """Start the tasks; `observer` is told of their output and of what becomes of them."""
        # A held port and its lock, a pipe and a log for each task.
        allow_open_files(4 * len(plan.tasks) + 128)
        _make_logs(plan)
        supervisor = Supervisor(plan, self.machine.environ, observer or Silent())
        thread = threading.Thread(target=supervisor.run, name="phalanx-supervisor")
        thread.start()
        return LocalHandle(supervisor, thread)


class LocalHandle:
    """A job that runs on this machine, looked after by a thread of this process."""

    def __init__(self, supervisor: Supervisor, thread: threading.Thread) -> None:
        self._supervisor = supervisor
        self._thread = thread

    def status(self) -> list[TaskStatus]:
        """Every task as it is now."""
        return list(self._supervisor.statuses.values())

    def logs(self, task: Task) -> Iterator[str]:
        """The task's output so far."""
        paths = {plan.task: plan.log for plan in self._supervisor.plan.tasks}
        with paths[task].open(errors="replace") as log:
            for line in log:
                yield line.rstrip("\n")

    def cancel(self, result: JobResult | None = None) -> None:
        """End the job, with this result unless it has failed already."""
        self._supervisor.cancel(result or JobResult(1, "cancelled"))

    def kill(self) -> None:
        """Wait for nobody any more: SIGKILL to every task."""
        self._supervisor.kill()

    def wait(self, timeout: float | None = None) -> JobResult | None:
        """How the job ended; None if it goes on after `timeout` seconds."""
        self._thread.join(timeout)
        return None if self._thread.is_alive() else self._supervisor.result


def _make_logs(plan: LocalPlan) -> None:
    """Every log file there and writable, before anything is started."""
    for task_plan in plan.tasks:
        try:
            task_plan.log.parent.mkdir(parents=True, exist_ok=True)
            task_plan.log.open("wb").close()
        except OSError as error:
            file_there = isinstance(error, FileExistsError)
            reason = "a file of that name is in the way" if file_there else error.strerror
            raise JobError(
                f"no output can be written to {task_plan.log.parent}: {reason}; "
                "choose another --log-dir"
            ) from None
