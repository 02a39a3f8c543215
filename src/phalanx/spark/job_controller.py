"""The driver's end of a job: receives messages of all tasks, shows their output, and ends them.

The rules of launch/termination.py apply. In addition, when a task fails because of another one, its
failure may be reported first; the tasks then run on for a moment, until the cause is known.
"""

import contextlib
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Self

from phalanx.cluster.spec import Role, Task
from phalanx.errors import JobError
from phalanx.launch.termination import GracePeriods, deciding_tasks, time_left
from phalanx.spark.connection import Connection, TaskMessage

CAUSE_SECONDS = 5.0
_TICK_SECONDS = 0.1
_GREETING_SECONDS = 10.0
# Connections that have not proved yet that they come from a task; then the oldest is closed.
_MAX_STRANGERS = 64
_CLOSE_SECONDS = 10.0


class Cause(IntEnum):
    """How close a task's failure is to the cause of the job's failure; the lowest is reported."""

    ORIGIN = 0  # The failure began in this task.
    REPORTED = 1  # Another task reported its failure to this one.
    PEER = 2  # Another task could not be reached.
    LOST = 3  # The connection to the task was lost.


@dataclass(frozen=True)
class Failure:
    """Why a task failed; `is_final` if a restart cannot help."""

    task: Task
    text: str
    cause: Cause = Cause.ORIGIN
    is_final: bool = False


class JobState:
    """The tasks of one job. The time is passed in."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._running = set(tasks)
        self._deciding = set(deciding_tasks(tasks))
        self._end_requested_at: dict[Task, float] = {}
        self._failures: list[Failure] = []
        self._settled_at: float | None = None
        self._grace_periods = GracePeriods()

    @property
    def failure(self) -> Failure | None:
        return min(self._failures, key=lambda failure: failure.cause, default=None)

    def is_running(self, task: Task) -> bool:
        return task in self._running

    def task_ended(self, task: Task, failure: Failure | None, now: float) -> None:
        """Record the end of a task; after a request to end, or after success, it is no failure."""
        self._running.discard(task)
        self._deciding.discard(task)
        has_succeeded = self._settled_at is not None and not self._failures
        if failure is not None and task not in self._end_requested_at and not has_succeeded:
            self._failures.append(failure)
        if self._settled_at is None and (self._failures or not self._deciding):
            self._settled_at = now

    def tasks_to_end(self, now: float) -> list[Task]:
        """Return the tasks to end now; each task is returned once."""
        requested = self._end_requested_at
        due = [task for task in sorted(self._running - set(requested)) if self._is_due(task, now)]
        requested.update(dict.fromkeys(due, now))
        return due

    def is_over(self, now: float) -> bool:
        """Return whether no task runs any more, or those that do have exceeded their time."""
        late = self._grace_periods.grace + CAUSE_SECONDS
        requested = self._end_requested_at
        return all(now > requested.get(task, now) + late for task in self._running)

    def _is_due(self, task: Task, now: float) -> bool:
        if self._settled_at is None:
            return False
        cause_unknown = self.failure is not None and self.failure.cause is not Cause.ORIGIN
        if cause_unknown and now < self._settled_at + CAUSE_SECONDS and task.role is not Role.PS:
            return False
        left = time_left(task, self._running, bool(self._failures), self._grace_periods)
        return now >= self._settled_at + left


class _EventKind(Enum):
    CONNECTED = "connected"
    ENDED = "ended"
    LOST = "lost"


@dataclass(frozen=True)
class _Event:
    """What has happened to a task; a task that has ended may have failed."""

    task: Task
    kind: _EventKind
    failure: Failure | None = None


def _parse_failure(task: Task, error: TaskMessage | None) -> Failure | None:
    if not error:
        return None
    return Failure(task, str(error["text"]), Cause(error["cause"]), bool(error["is_final"]))


class JobController:
    """Controls the tasks of one job from threads, as long as the `with` block lasts.

    `on_absent` is called, once, if some tasks have not connected within `wait_seconds`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        show: Callable[[Task, list[str]], None],
        *,
        host: str = "",
        port: int = 0,
        wait_seconds: float,
        on_absent: Callable[[list[Task]], None],
    ) -> None:
        self.token = secrets.token_hex(16)
        self.absent: list[Task] = []
        self._tasks = {str(task): task for task in tasks}
        self._show = show
        self._host = host
        self._requested_port = port
        self._wait_seconds = wait_seconds
        self._on_absent = on_absent
        self._state = JobState(tasks)
        self._connections: dict[Task, Connection] = {}
        self._events: queue.Queue[_Event] = queue.Queue()
        self._show_lock = threading.Lock()
        self._closed = threading.Event()
        self._strangers: dict[Connection, None] = {}
        self._strangers_lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        is_dual = not self._host and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if is_dual or ":" in self._host else socket.AF_INET
        address, backlog = (self._host, self._requested_port), len(self._tasks) + 16
        try:
            self._server = socket.create_server(
                address, family=family, dualstack_ipv6=is_dual, backlog=backlog
            )
        except OSError as error:
            what = f"the driver cannot listen on port {self._requested_port} ({error.strerror})"
            raise JobError(f"{what}: choose another driver_port, or leave it out") from None
        self._start(self._accept)
        self._start(self._control)
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._strangers_lock:
            for stranger in self._strangers:
                stranger.close()
        self.disconnect()
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    @property
    def failure(self) -> Failure | None:
        return self._state.failure

    def disconnect(self) -> None:
        """Close every connection; a task without a driver ends."""
        for connection in list(self._connections.values()):
            connection.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        name = "phalanx-job-controller"
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        self._threads = [each for each in self._threads if each.is_alive()] + [thread]
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                if self._closed.wait(_TICK_SECONDS):
                    return
                continue  # The stranger has left already, or there are too many open files.
            connection = Connection(sock)
            with self._strangers_lock:
                self._strangers[connection] = None
                if len(self._strangers) > _MAX_STRANGERS:
                    oldest = next(iter(self._strangers))
                    del self._strangers[oldest]
                    oldest.close()
            self._start(self._receive_all, connection)

    def _receive_all(self, connection: Connection) -> None:
        """Receive the messages of one task, if it proves to be one."""
        task = self._tasks.get(connection.challenge(self.token, _GREETING_SECONDS) or "")
        with self._strangers_lock:
            self._strangers.pop(connection, None)
            if task is None or task in self._connections or self._closed.is_set():
                connection.close()
                return
            self._connections[task] = connection
        self._events.put(_Event(task, _EventKind.CONNECTED))
        try:
            while (message := connection.receive()) is not None:
                lines = message.get("lines")
                if isinstance(lines, list) and lines:
                    # Output that cannot be shown, as to a closed pipe, must not end the job.
                    with self._show_lock, contextlib.suppress(Exception):
                        self._show(task, list(map(str, lines)))
                if "ended" in message:
                    failure = _parse_failure(task, message["ended"])
                    self._events.put(_Event(task, _EventKind.ENDED, failure))
        except (KeyError, TypeError, ValueError):
            connection.close()  # It does not speak as a task does, and counts as lost.
        finally:
            self._events.put(_Event(task, _EventKind.LOST))

    def _control(self) -> None:
        absent = set(self._tasks.values())
        deadline = time.monotonic() + self._wait_seconds
        while not self._closed.is_set():
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=_TICK_SECONDS)
                absent.discard(event.task)
                self._handle(event)
            now = time.monotonic()
            if absent and now > deadline:
                self.absent = sorted(absent)
                self._on_absent(self.absent)
                return
            for task in self._state.tasks_to_end(now):
                if task in self._connections:
                    self._connections[task].send(end=True)
            if self._state.is_over(now):
                for connection in list(self._connections.values()):
                    connection.send(leave=True)
                return

    def _handle(self, event: _Event) -> None:
        task, now = event.task, time.monotonic()
        if event.kind is _EventKind.ENDED:
            self._state.task_ended(task, event.failure, now)
        elif event.kind is _EventKind.LOST and self._state.is_running(task):
            lost = Failure(task, "its connection to the driver broke", Cause.LOST)
            self._state.task_ended(task, lost, now)
