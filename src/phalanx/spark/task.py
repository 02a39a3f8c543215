"""One task, wherever it runs: holds a port, learns everybody's address, looks after its process."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.cluster.shape import shape_variables
from phalanx.cluster.spec import Cluster, Role, Task
from phalanx.cluster.tf_config import VARIABLE, TFConfig
from phalanx.errors import WorkerError
from phalanx.launch.backends.local.ports import hold_ports
from phalanx.launch.base import JobResult, TaskStatus
from phalanx.launch.environment import DEFAULTS, thread_variables
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE
from phalanx.launch.processes.handle import start
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan
from phalanx.launch.termination import GracePeriods
from phalanx.spark.call import CALL, ERROR, VALUE
from phalanx.spark.job_state import CAUSE_SECONDS, Cause
from phalanx.spark.link import Link

_LEAVE_SECONDS = GracePeriods.grace + 3 * CAUSE_SECONDS


@dataclass(frozen=True)
class Assignment:
    """What every task of a job is told."""

    tasks: tuple[Task, ...]
    driver: tuple[str, int]
    token: str
    run_id: str
    call: bytes
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskPlacement:
    """Where one of the tasks is, and what it has there. None for the GPUs leaves them as is."""

    number: int
    host: str
    threads: int | None = None
    gpus: tuple[str, ...] | None = None


def run_task(
    assignment: Assignment, place: TaskPlacement, gather: Callable[[str], Sequence[str]]
) -> bytes | None:
    """Run the task of this place to its end; the chief's gives what its function returned, packed.

    `gather` gives the text of each task, in their order, to all.
    """
    task = assignment.tasks[place.number]
    host = f"[{place.host}]" if ":" in place.host else place.host
    with (
        Link.connect(*assignment.driver) as link,
        hold_ports(1) as (port,),
        tempfile.TemporaryDirectory(prefix="phalanx-spark-", ignore_cleanup_errors=True) as folder,
    ):
        link.send(task=str(task), token=assignment.token)
        addresses = dict(zip(assignment.tasks, gather(f"{host}:{port}"), strict=True))
        plan = plan_process(assignment, place, Cluster(addresses), Path(folder))
        (Path(folder) / CALL).write_bytes(assignment.call)
        orders, reporter = _Orders(link), _Reporter(link, Path(folder))
        result = _look_after(plan, reporter, orders)
        value = _report(task, reporter.left, result, link, orders)
        return value if task == Cluster(addresses).chief() else None


def plan_process(
    assignment: Assignment, place: TaskPlacement, cluster: Cluster, folder: Path
) -> ProcessPlan:
    """The process of a task: its command and what is added to its environment."""
    task = assignment.tasks[place.number]
    run_id = f"{assignment.run_id}-{task}"
    members = {
        at: where for at, where in cluster.addresses.items() if at.role is not Role.EVALUATOR
    }
    environment = {
        VARIABLE: TFConfig(Cluster(members), task).dumps(),
        **shape_variables(assignment.tasks),
        # What Spark has put on the path of its workers, as by addPyFile, is wanted here too.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        **{name: text for name, text in DEFAULTS.items() if name not in os.environ},
        **(thread_variables(place.threads) if place.threads else {}),
        **_gpu_variables(task, place.gpus),
        **assignment.environment,
        RUN_ID_VARIABLE: run_id,
        TASK_VARIABLE: str(task),
    }
    argv = (sys.executable, "-m", "phalanx.spark.child", str(folder))
    tasks = (TaskPlan(task, argv, environment, folder / "output.log"),)
    # Should this process be killed, its guardian removes the folder.
    cleanup = (("rm", "-rf", str(folder)),)
    grace_periods = GracePeriods(linger=0, evaluator_linger=0)
    return ProcessPlan(tasks, run_id, grace_periods=grace_periods, cleanup=cleanup)


def _gpu_variables(task: Task, gpus: tuple[str, ...] | None) -> dict[str, str]:
    if gpus is None:
        return {}
    mine = () if task.role is Role.PS else gpus
    return {"CUDA_VISIBLE_DEVICES": ",".join(mine) or "-1"}


class _Reporter:
    """Sends the output of the process to the driver, and reads what the process leaves behind."""

    def __init__(self, link: Link, folder: Path) -> None:
        self._link = link
        self._folder = folder
        self.left: dict[str, bytes] = {}

    def output(self, task: Task, lines: list[str]) -> None:
        self._link.send(lines=lines)

    def changed(self, status: TaskStatus) -> None:
        """Once the process is gone its folder goes too."""
        if status.exit_code is not None:
            files = [self._folder / name for name in (VALUE, ERROR)]
            self.left = {file.name: file.read_bytes() for file in files if file.exists()}

    def note(self, message: str) -> None:
        self._link.send(lines=[message])


class _Orders:
    """What the driver has said, heard by a thread. A driver that is gone has said everything."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.end = threading.Event()
        self.leave = threading.Event()

    def hear(self, on_end: Callable[[], None]) -> None:
        threading.Thread(
            target=self._listen, args=(on_end,), name="phalanx-orders", daemon=True
        ).start()

    def _listen(self, on_end: Callable[[], None]) -> None:
        while not self.leave.is_set():
            message = self._link.receive() or {"end": True, "leave": True}
            if message.get("end"):
                self.end.set()
                on_end()
            if message.get("leave"):
                self.leave.set()


def _look_after(plan: ProcessPlan, reporter: _Reporter, orders: _Orders) -> JobResult:
    """Start the process and stay until it is gone; the driver may ask for its end."""
    handle = start(plan, os.environ, reporter)
    orders.hear(lambda: handle.cancel(JobResult(0, "ended by the driver")))
    try:
        result = None
        while result is None:
            result = handle.wait(1.0)
        return result
    except BaseException:
        handle.kill()
        handle.wait(_LEAVE_SECONDS)
        raise


def _report(
    task: Task, left: Mapping[str, bytes], result: JobResult, link: Link, orders: _Orders
) -> bytes | None:
    was_asked = orders.end.is_set()
    told: dict[str, Any] | None = None
    if ERROR in left:
        told = json.loads(left[ERROR])
    elif result.exit_code:
        text = "\n".join([result.reason.removeprefix(f"{task} "), *result.last_lines])
        told = {"text": text, "cause": Cause.OWN, "is_final": False}
    link.send(ended=told)
    if told is None or was_asked:
        return left.get(VALUE)
    # Spark ends all others as soon as this task fails: they get the time to end by themselves.
    orders.leave.wait(_LEAVE_SECONDS)
    raise WorkerError(f"{task} failed: {told['text']}")
