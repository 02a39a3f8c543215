"""The handle of a job whose supervisor is a thread of this process."""

import threading
from collections.abc import Iterator, Mapping

from phalanx.cluster.spec import Task
from phalanx.errors import JobError
from phalanx.launch.base import JobResult, TaskStatus
from phalanx.launch.log_files import read_log
from phalanx.launch.private_files import make_private_directory, open_private
from phalanx.launch.processes.plan import ProcessPlan
from phalanx.launch.processes.supervisor import NullObserver, Observer, Supervisor
from phalanx.launch.secrets import check_secrets
from phalanx.open_files import allow_more_open_files


class SupervisedHandle:
    """A job on this machine, supervised by a thread of this process."""

    def __init__(self, supervisor: Supervisor, thread: threading.Thread) -> None:
        self._supervisor = supervisor
        self._thread = thread

    def status(self) -> list[TaskStatus]:
        return list(self._supervisor.statuses.values())

    def logs(self, task: Task, follow: bool = False) -> Iterator[str]:
        plans = self._supervisor.plan.tasks
        paths = {plan.task: plan.log for plan in plans}
        # A slot that an elastic job has not used yet has no plan.
        path = paths.get(task, plans[0].log.with_name(f"{task}.log"))
        yield from read_log(path, (lambda: not self._thread.is_alive()) if follow else None)

    def cancel(self, result: JobResult | None = None) -> None:
        """End the job, with this result unless it has failed already."""
        self._supervisor.cancel(result or JobResult(1, "cancelled"))

    def kill(self) -> None:
        """Send SIGKILL to every task, without a grace period."""
        self._supervisor.kill()

    def wait(self, timeout: float | None = None) -> JobResult | None:
        self._thread.join(timeout)
        return None if self._thread.is_alive() else self._supervisor.result


def start(
    plan: ProcessPlan, environ: Mapping[str, str], observer: Observer | None = None
) -> SupervisedHandle:
    """Start the tasks; `observer` receives their output and every change of state."""
    # A held port and its lock, a pipe and a log for each task.
    allow_more_open_files(4 * len(plan.tasks) + 128)
    check_secrets(path for each in plan.tasks for path in each.secrets.values())
    _create_logs(plan)
    supervisor = Supervisor(plan, environ, observer or NullObserver())
    thread = threading.Thread(target=supervisor.run, name="phalanx-supervisor")
    thread.start()
    return SupervisedHandle(supervisor, thread)


def _create_logs(plan: ProcessPlan) -> None:
    """Raise a JobError before anything is started if a log file cannot be written."""
    for task_plan in plan.tasks:
        try:
            make_private_directory(task_plan.log.parent)
            open_private(task_plan.log, "wb").close()
        except OSError as error:
            exists = isinstance(error, FileExistsError)
            reason = "a file of that name is in the way" if exists else error.strerror
            raise JobError(
                f"no output can be written to {task_plan.log.parent}: {reason}; "
                "choose another --log-dir"
            ) from None
