"""A job whose processes a thread of this process looks after."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping

from phalanx.cluster.spec import Task
from phalanx.errors import JobError
from phalanx.launch.base import JobResult, TaskStatus
from phalanx.launch.log_files import read_log
from phalanx.launch.processes.plan import ProcessPlan
from phalanx.launch.processes.supervisor import Observer, Silent, Supervisor
from phalanx.open_files import allow_open_files


def start(
    plan: ProcessPlan, environ: Mapping[str, str], observer: Observer | None = None
) -> SupervisedHandle:
    """Start the tasks; `observer` is told of their output and of what becomes of them."""
    # A held port and its lock, a pipe and a log for each task.
    allow_open_files(4 * len(plan.tasks) + 128)
    _make_logs(plan)
    supervisor = Supervisor(plan, environ, observer or Silent())
    thread = threading.Thread(target=supervisor.run, name="phalanx-supervisor")
    thread.start()
    return SupervisedHandle(supervisor, thread)


class SupervisedHandle:
    """A job that runs on this machine, looked after by a thread of this process."""

    def __init__(self, supervisor: Supervisor, thread: threading.Thread) -> None:
        self._supervisor = supervisor
        self._thread = thread

    def status(self) -> list[TaskStatus]:
        """Every task as it is now."""
        return list(self._supervisor.statuses.values())

    def logs(self, task: Task, follow: bool = False) -> Iterator[str]:
        """The task's output so far; with `follow`, until the job is over."""
        paths = {plan.task: plan.log for plan in self._supervisor.plan.tasks}
        yield from read_log(paths[task], (lambda: not self._thread.is_alive()) if follow else None)

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


def _make_logs(plan: ProcessPlan) -> None:
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
