"""The task files of a run: what each task of its cluster does, in model_dir/cluster/TASK.json.

Each task replaces its own file every few seconds. The Cluster page of TensorBoard reads them. A
file is bounded: it has the newest events and the newest lines of the log. A restarted task
continues the file of its former process, so that the events tell of restarts, too.

Only the chief creates the directory. The other tasks write if they find it, which they do if
model_dir is shared.
"""

import json
import logging
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from phalanx.cluster.spec import Task
from phalanx.train.model_dir.layout import TASK_FOLDER

HEARTBEAT_SECONDS = 2.0
SILENT_SECONDS = 15.0
_EVENTS = 200
_LINES = 40
_LINE_LENGTH = 300
_LARGEST_BYTES = 4 << 20


@dataclass(frozen=True)
class TaskEvent:
    """Something that happened to a task.

    `kind` is started, lost, saved, evaluated, done or failed. A task is lost if its process has
    ended without a message: it was killed, or its host is gone.
    """

    time: float
    kind: str
    text: str = ""
    step: int | None = None


@dataclass
class TaskReport:
    """The contents of a task file, under the same names.

    Attributes:
        task: The task, as in `worker-1`.
        host: The name of its host.
        pid: The number of its process.
        started: When the process started, in Unix time.
        time: When the file was written, in Unix time.
        state: running, done or failed.
        reason: Why the task failed.
        restarts: How many times the task was started again.
        leads: Whether this task leads the run.
        step: The number of steps that are done.
        total: The step at which the run ends, if that is known.
        loss: The last loss.
        examples_per_second: The speed of all trainers together.
        seconds_per_step: The time between two steps of the run.
        parts: What this task spends the time between two of its own steps on, in seconds.
        trainer_parts: The same of other tasks that this one knows, by task.
        trainer_steps: The steps of each trainer, by task.
        stragglers: The trainers that make far fewer steps than the others.
        variable_bytes: The bytes of the variables on each parameter server, by task.
        events: What happened, the oldest first.
        log: The last lines of the log.
    """

    task: str
    host: str = ""
    pid: int = 0
    started: float = 0.0
    time: float = 0.0
    state: str = "running"
    reason: str = ""
    restarts: int = 0
    leads: bool = False
    step: int | None = None
    total: int | None = None
    loss: float | None = None
    examples_per_second: float | None = None
    seconds_per_step: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    trainer_parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    trainer_steps: Mapping[str, int] = field(default_factory=dict)
    stragglers: list[str] = field(default_factory=list)
    variable_bytes: Mapping[str, int] = field(default_factory=dict)
    events: list[TaskEvent] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, text: str) -> "TaskReport":
        """Read a task file; raise ValueError if it is not one."""
        try:
            # A loss that is not a number is written as NaN, which browsers do not read.
            found = json.loads(text, parse_constant=lambda _: None)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        if not isinstance(found, dict):
            raise ValueError("not an object")
        known = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
        try:
            events = [TaskEvent(**event) for event in known.pop("events", [])]
            report = cls(**known, events=events)
        except TypeError as error:
            raise ValueError(str(error)) from None
        if not _is_well_formed(report):
            raise ValueError("values of other types")
        return report


def _is_well_formed(report: TaskReport) -> bool:
    """Whether all values are of the types that the readers of a report rely on."""
    if not isinstance(report.trainer_parts, dict):
        return False
    counts = [report.parts, report.trainer_steps, report.variable_bytes]
    counts += report.trainer_parts.values()
    lists = [report.log, report.stragglers]
    if not all(isinstance(each, list) for each in lists):
        return False
    if not all(isinstance(each, dict) for each in counts):
        return False
    events = report.events
    texts = [report.task, report.host, report.state, report.reason, *report.log]
    texts += report.stragglers
    texts += [text for event in events for text in (event.kind, event.text)]
    numbers = [report.pid, report.started, report.time, report.restarts]
    numbers += [event.time for event in events]
    optional = [report.step, report.total, report.loss, report.examples_per_second]
    optional += [report.seconds_per_step, *(event.step for event in events)]
    numbers += [number for each in counts for number in each.values()]
    numbers += [number for number in optional if number is not None]
    return all(isinstance(text, str) for text in texts) and all(map(_is_finite, numbers))


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


class TaskFile:
    """The file of the task of this process."""

    def __init__(self, directory: str, task: Task, leads: bool) -> None:
        self._path = Path(directory, TASK_FOLDER, f"{task}.json")
        self._leads = leads
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._log: deque[str] = deque(maxlen=_LINES)
        self.report = TaskReport(str(task), leads=leads)

    def open(self) -> None:
        """Continue the file of an earlier process of this task, if there is one."""
        if self._leads:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        before = read_task_file(self._path)
        report, now = self.report, time.time()
        report.host, report.pid, report.started = socket.gethostname(), os.getpid(), now
        if before is not None:
            report.events, report.restarts = before.events, before.restarts
            self._log.extend(before.log)
            if before.pid != report.pid or before.host != report.host:
                if before.state == "running":
                    reason = "ended without a message: it was killed, or its host is gone"
                    report.events.append(TaskEvent(before.time, "lost", reason))
                # A new run in the same directory is not a restart.
                report.restarts = before.restarts + 1 if before.state != "done" else 0
                self.add_event("started", f"on {report.host}, restart {report.restarts}")
        else:
            self.add_event("started", f"on {report.host}")
        self.write()

    def add_event(self, kind: str, text: str = "", step: int | None = None) -> None:
        with self._lock:
            events = [*self.report.events, TaskEvent(time.time(), kind, text[:_LINE_LENGTH], step)]
            self.report.events = events[-_EVENTS:]

    def add_line(self, line: str) -> None:
        self._log.append(line[:_LINE_LENGTH])

    def update(self, **values: Any) -> None:
        """Set fields of the report; the next heartbeat writes them."""
        with self._lock:
            for name, value in values.items():
                setattr(self.report, name, value)

    def write(self) -> None:
        """Replace the file atomically, if its directory exists; a full disk must not end a run."""
        with self._lock, suppress(OSError):
            if self._path.parent.is_dir():
                self.report.time = time.time()
                self.report.log = list(self._log)
                new = self._path.with_suffix(".new")
                new.write_text(json.dumps(asdict(self.report)))
                new.replace(self._path)

    def beat(self) -> None:
        """Write the file every few seconds until `close`."""
        while not self._stop.wait(HEARTBEAT_SECONDS):
            self.write()

    def close(self) -> None:
        self._stop.set()


class _LogLines(logging.Handler):
    def __init__(self, file: TaskFile) -> None:
        super().__init__(logging.INFO)
        self._file = file
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            self._file.add_line(line)


_current: list[TaskFile] = []


def current_task_file() -> TaskFile | None:
    """Return the file that `report_task` keeps now, if there is one."""
    return _current[-1] if _current else None


@contextmanager
def report_task(directory: str | None, task: Task, leads: bool) -> Iterator[None]:
    """Keep the task file up to date until the task ends, and write how it ended.

    Nothing is written for a directory that is not on a file system of this host.
    """
    if directory is None or "://" in directory:
        yield
        return
    file = TaskFile(directory, task, leads)
    handler = _LogLines(file)
    logger = logging.getLogger("phalanx")
    with suppress(OSError):
        file.open()
    threading.Thread(target=file.beat, name="phalanx-task-file", daemon=True).start()
    logger.addHandler(handler)
    _current.append(file)
    try:
        yield
        file.update(state="done")
        file.add_event("done")
    except BaseException as error:
        reason = str(error) or type(error).__name__
        file.update(state="failed", reason=reason)
        file.add_event("failed", reason)
        raise
    finally:
        _current.remove(file)
        logger.removeHandler(handler)
        file.close()
        file.write()


def read_task_file(path: Path) -> TaskReport | None:
    """Read a task file; None if there is none, or none that can be read."""
    try:
        # A pipe would block the reader, and a large file fill its memory.
        if not path.is_file() or path.stat().st_size > _LARGEST_BYTES:
            return None
        return TaskReport.load(path.read_text())
    except (OSError, ValueError):
        return None


def read_task_files(directory: Path) -> list[TaskReport]:
    """Return the reports of all tasks of a run, in the order of their names."""
    found = [read_task_file(path) for path in (directory / TASK_FOLDER).glob("*.json")]
    reports = [report for report in found if report is not None]
    return sorted(reports, key=lambda report: _order(report.task))


def _order(name: str) -> tuple[Any, ...]:
    try:
        return (0, Task.parse(name), "")
    except Exception:  # a file of somebody else
        return (1, Task.parse("chief-0"), name)
