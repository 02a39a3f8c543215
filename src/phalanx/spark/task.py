"""One task on an executor or the driver: reserves a port, gathers all addresses, runs a process."""

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.cluster.job_environment import shape_variables
from phalanx.cluster.spec import Cluster, Role, Task, split_address
from phalanx.cluster.tf_config import VARIABLE, TFConfig
from phalanx.errors import WorkerError
from phalanx.guard.plan import plan_guard
from phalanx.launch.backends.local.ports import hold_ports
from phalanx.launch.base import JobResult, TaskStatus
from phalanx.launch.private_files import write_atomically
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE
from phalanx.launch.processes.handle import start
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan
from phalanx.launch.task_commands import DEFAULTS, thread_variables
from phalanx.launch.termination import GracePeriods
from phalanx.spark.child_process import CONTEXT, ERROR, FUNCTION, VALUE
from phalanx.spark.connection import Connection, TaskMessage
from phalanx.spark.job_controller import CAUSE_SECONDS, Cause

# The driver decides when tasks end: here a task ends at once when it is asked to.
_GRACE_PERIODS = GracePeriods(linger=0, evaluator_linger=0)
_LEAVE_SECONDS = _GRACE_PERIODS.grace + 3 * CAUSE_SECONDS


@dataclass(frozen=True)
class Assignment:
    tasks: tuple[Task, ...]
    driver: tuple[str, int]
    token: str
    run_id: str
    function: bytes
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskPlacement:
    """The index of a task, its host, and its share of it. With None all GPUs stay visible.

    `context` describes Spark's own context of the task.
    """

    index: int
    host: str
    threads: int | None = None
    gpus: tuple[str, ...] | None = None
    context: str = ""


def run_task(
    assignment: Assignment, placement: TaskPlacement, gather: Callable[[str], Sequence[str]]
) -> bytes | None:
    """Run a task to its end; return the pickled value of its function if it is the chief.

    `gather` sends a text to all tasks, and returns the texts of all in their order.
    """
    task = assignment.tasks[placement.index]
    host = f"[{placement.host}]" if ":" in placement.host else placement.host
    with (
        closing(Connection.connect(*assignment.driver)) as connection,
        hold_ports(1) as (port,),
        tempfile.TemporaryDirectory(prefix="phalanx-spark-", ignore_cleanup_errors=True) as path,
    ):
        folder = Path(path)
        connection.answer(assignment.token, str(task))
        addresses = dict(zip(assignment.tasks, gather(f"{host}:{port}"), strict=True))
        guard = _plan_guard(assignment, placement.host, addresses.values(), connection)
        plan = plan_process(assignment, placement, Cluster(addresses), folder, guard)
        (folder / FUNCTION).write_bytes(assignment.function)
        write_atomically(folder / CONTEXT, placement.context.encode())
        requests, observer = _DriverRequests(), _TaskObserver(connection, folder)
        result = _run_process(plan, observer, requests, connection)
        value = _report(task, observer.files, result, connection, requests)
        return value if task == Cluster(addresses).chief() else None


def plan_process(
    assignment: Assignment,
    placement: TaskPlacement,
    cluster: Cluster,
    folder: Path,
    guard: Mapping[str, str],
) -> ProcessPlan:
    task = assignment.tasks[placement.index]
    run_id = f"{assignment.run_id}-{task}"
    environment = {
        VARIABLE: TFConfig(cluster.without_evaluators(), task).dumps(),
        **shape_variables(assignment.tasks),
        # What Spark has added to the path of its workers, as by addPyFile, is needed here too.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        **{name: text for name, text in DEFAULTS.items() if name not in os.environ},
        **(thread_variables(placement.threads) if placement.threads else {}),
        **_gpu_variables(task, placement.gpus),
        **assignment.environment,
        **guard,
        RUN_ID_VARIABLE: run_id,
        TASK_VARIABLE: str(task),
    }
    argv = (sys.executable, "-m", "phalanx.spark.child_process", str(folder))
    tasks = (TaskPlan(task, argv, environment, folder / "output.log"),)
    # If this process is killed, the guardian removes the folder.
    cleanup = (("rm", "-rf", str(folder)),)
    return ProcessPlan(tasks, run_id, grace_periods=_GRACE_PERIODS, cleanup=cleanup)


def _plan_guard(
    assignment: Assignment, host: str, addresses: Iterable[str], connection: Connection
) -> Mapping[str, str]:
    """Return the variables that close the ports of the task to hosts that are not in the job."""
    hosts = [split_address(address)[0] for address in addresses]
    guard = plan_guard(host, hosts, {**os.environ, **assignment.environment})
    if guard.warning:
        connection.send(lines=[f"phalanx: warning: {guard.warning}"])
    return guard.variables


def _gpu_variables(task: Task, gpus: tuple[str, ...] | None) -> dict[str, str]:
    if gpus is None:
        return {}
    visible = () if task.role is Role.PS else gpus
    return {"CUDA_VISIBLE_DEVICES": ",".join(visible)}


def map_gpus(addresses: Sequence[str], visible: str | None) -> tuple[str, ...]:
    """Return the GPUs behind Spark's addresses, which count those that the executor may see."""
    shown = visible.split(",") if visible else []
    return tuple(
        shown[int(address)] if address.isdecimal() and int(address) < len(shown) else address
        for address in addresses
    )


class _TaskObserver:
    """Sends the output of the process to the driver, and reads the files that it has written."""

    def __init__(self, connection: Connection, folder: Path) -> None:
        self._connection = connection
        self._folder = folder
        self.files: dict[str, bytes] = {}

    def output(self, task: Task, lines: list[str]) -> None:
        self._connection.send(lines=lines)

    def changed(self, status: TaskStatus) -> None:
        """Read the files of a process that has ended, before its folder is removed."""
        if status.exit_code is not None:
            files = [self._folder / name for name in (VALUE, ERROR)]
            self.files = {file.name: file.read_bytes() for file in files if file.exists()}

    def note(self, message: str) -> None:
        self._connection.send(lines=[message])


class _DriverRequests:
    """The requests of the driver. A lost driver counts as both."""

    def __init__(self) -> None:
        self.end = threading.Event()
        self.leave = threading.Event()

    def receive_all(self, connection: Connection, on_end: Callable[[], None]) -> None:
        while not self.leave.is_set():
            message = connection.receive() or {"end": True, "leave": True}
            if message.get("end"):
                self.end.set()
                on_end()
            if message.get("leave"):
                self.leave.set()


def _run_process(
    plan: ProcessPlan, observer: _TaskObserver, requests: _DriverRequests, connection: Connection
) -> JobResult:
    """Run the process until it has ended by itself or at the driver's request."""
    handle = start(plan, os.environ, observer)
    arguments = (connection, lambda: handle.cancel(JobResult(0, "ended by the driver")))
    threading.Thread(target=requests.receive_all, args=arguments, daemon=True).start()
    try:
        while (result := handle.wait(1.0)) is None:
            pass
        return result
    except BaseException:
        handle.kill()
        handle.wait(_LEAVE_SECONDS)
        raise


def _report(
    task: Task,
    files: Mapping[str, bytes],
    result: JobResult,
    connection: Connection,
    requests: _DriverRequests,
) -> bytes | None:
    """Report the end of the task to the driver; return its value, or raise its error."""
    was_requested = requests.end.is_set()
    error: TaskMessage | None = None
    if ERROR in files:
        error = json.loads(files[ERROR])
    elif result.exit_code:
        text = "\n".join([result.reason.removeprefix(f"{task} "), *result.last_lines])
        error = {"text": text, "cause": Cause.ORIGIN, "is_final": False}
    connection.send(ended=error)
    if error is None or was_requested:
        return files.get(VALUE)
    # Spark kills all other tasks as soon as this one fails: first let them end by themselves.
    requests.leave.wait(_LEAVE_SECONDS)
    raise WorkerError(f"{task} failed: {error['text']}")
