"""The driver's end of a job: receives messages of all tasks, shows their output, and ends them."""

from __future__ import annotations

import contextlib
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

from phalanx.cluster.spec import Task
from phalanx.errors import JobError
from phalanx.spark.connection import Connection, TaskMessage
from phalanx.spark.job_state import Cause, Failure, JobState

_TICK_SECONDS = 0.1
_TOKEN_SECONDS = 10.0
_CLOSE_SECONDS = 10.0


class JobController:
    """Controls the tasks of one job from threads, as long as the `with` block lasts.

    `on_absent` is called, once, if some tasks have not connected within `wait_seconds`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        show: Callable[[Task, list[str]], None],
        *,
        port: int = 0,
        wait_seconds: float,
        on_absent: Callable[[list[Task]], None],
    ) -> None:
        self.token = secrets.token_hex(16)
        self.absent: list[Task] = []
        self._tasks = {str(task): task for task in tasks}
        self._show = show
        self._requested_port = port
        self._wait_seconds = wait_seconds
        self._on_absent = on_absent
        self._state = JobState(tasks)
        self._connections: dict[Task, Connection] = {}
        self._events: queue.Queue[tuple[Task, TaskMessage | None]] = queue.Queue()
        self._show_lock = threading.Lock()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        try:
            self._server = socket.create_server(
                ("", self._requested_port),
                family=family,
                dualstack_ipv6=family == socket.AF_INET6,
                backlog=len(self._tasks) + 16,
            )
        except OSError as error:
            raise JobError(
                f"the driver cannot listen on port {self._requested_port} ({error.strerror}): "
                "choose another driver_port, or leave it out"
            ) from None
        self._start(self._accept)
        self._start(self._control)
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.disconnect()
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)

    @property
    def port(self) -> int:
        return int(self._server.getsockname()[1])

    @property
    def failure(self) -> Failure | None:
        """Why the job failed, as far as the tasks have reported it."""
        return self._state.failure

    def disconnect(self) -> None:
        """Close every connection; a task without a driver ends."""
        for connection in list(self._connections.values()):
            connection.close()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(
            target=target, args=arguments, name="phalanx-job-controller", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            self._start(self._receive_all, Connection(sock))

    def _receive_all(self, connection: Connection) -> None:
        """Receive the messages of one task, if its first one has the token."""
        first = connection.receive(_TOKEN_SECONDS) or {}
        task = self._tasks.get(str(first.get("task")))
        is_valid = secrets.compare_digest(str(first.get("token")).encode(), self.token.encode())
        if task is None or not is_valid or self._closed.is_set():
            connection.close()
            return
        self._connections[task] = connection
        self._events.put((task, first))
        try:
            while (message := connection.receive()) is not None:
                if lines := message.get("lines"):
                    # Output that cannot be shown, as to a closed pipe, must not end the job.
                    with self._show_lock, contextlib.suppress(Exception):
                        self._show(task, lines)
                if "ended" in message:
                    self._events.put((task, message))
        finally:
            self._events.put((task, None))

    def _control(self) -> None:
        absent = set(self._tasks.values())
        deadline = time.monotonic() + self._wait_seconds
        while not self._closed.is_set():
            with contextlib.suppress(queue.Empty):
                task, message = self._events.get(timeout=_TICK_SECONDS)
                absent.discard(task)
                self._handle_event(task, message)
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

    def _handle_event(self, task: Task, message: TaskMessage | None) -> None:
        now = time.monotonic()
        if message is None:
            if self._state.is_running(task):
                lost = Failure(task, "its connection to the driver broke", Cause.LOST)
                self._state.task_ended(task, lost, now)
        elif "ended" in message:
            error = message["ended"]
            failure = Failure(
                task, str(error["text"]), Cause(error["cause"]), bool(error["is_final"])
            ) if error else None  # fmt: skip
            self._state.task_ended(task, failure, now)
