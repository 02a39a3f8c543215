"""The driver's side: hears every task, shows its output, and tells who has to end."""

from __future__ import annotations

import contextlib
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from phalanx.cluster.spec import Task
from phalanx.errors import JobError
from phalanx.spark.job_state import Cause, Ensemble, Failure
from phalanx.spark.link import Link

_TICK_SECONDS = 0.1
_HELLO_SECONDS = 10.0
_CLOSE_SECONDS = 10.0

Show = Callable[[Task, list[str]], None]


class JobController:
    """Conducts the tasks of one job from a thread, as long as the `with` block lasts.

    `on_absent` is called, once, if some tasks have not come within `wait_seconds`.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        show: Show,
        *,
        port: int = 0,
        wait_seconds: float,
        on_absent: Callable[[list[Task]], None],
    ) -> None:
        self.token = secrets.token_hex(16)
        self.absent: list[Task] = []
        self._tasks = {str(task): task for task in tasks}
        self._show = show
        self._wanted_port = port
        self._wait_seconds = wait_seconds
        self._on_absent = on_absent
        self._ensemble = Ensemble(tasks)
        self._links: dict[Task, Link] = {}
        self._events: queue.Queue[tuple[Task, dict[str, Any] | None]] = queue.Queue()
        self._showing = threading.Lock()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
        try:
            self._server = socket.create_server(
                ("", self._wanted_port),
                family=family,
                dualstack_ipv6=family == socket.AF_INET6,
                backlog=len(self._tasks) + 16,
            )
        except OSError as error:
            raise JobError(
                f"the driver cannot listen on port {self._wanted_port} ({error.strerror}): "
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
        self.hang_up()
        for thread in self._threads:
            thread.join(_CLOSE_SECONDS)

    @property
    def port(self) -> int:
        """Where tasks connect to."""
        return int(self._server.getsockname()[1])

    @property
    def failure(self) -> Failure | None:
        """Why the job failed, as far as the tasks have told."""
        return self._ensemble.failure

    def hang_up(self) -> None:
        """Break every connection: a task that has no driver ends."""
        for link in list(self._links.values()):
            link.close()

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(
            target=target, args=arguments, name="phalanx-conductor", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return
            self._start(self._hear, Link(sock))

    def _hear(self, link: Link) -> None:
        """All that one task has to say; a stranger is not heard."""
        hello = link.receive(_HELLO_SECONDS) or {}
        task = self._tasks.get(str(hello.get("task")))
        known = secrets.compare_digest(str(hello.get("token")).encode(), self.token.encode())
        if task is None or not known or self._closed.is_set():
            link.close()
            return
        self._links[task] = link
        self._events.put((task, hello))
        try:
            while (message := link.receive()) is not None:
                if lines := message.get("lines"):
                    # Who reads the output may be gone, as behind a closed pipe: the job goes on.
                    with self._showing, contextlib.suppress(Exception):
                        self._show(task, lines)
                if "ended" in message:
                    self._events.put((task, message))
        finally:
            self._events.put((task, None))

    def _control(self) -> None:
        waiting = set(self._tasks.values())
        deadline = time.monotonic() + self._wait_seconds
        while not self._closed.is_set():
            with contextlib.suppress(queue.Empty):
                task, message = self._events.get(timeout=_TICK_SECONDS)
                waiting.discard(task)
                self._note(task, message)
            now = time.monotonic()
            if waiting and now > deadline:
                self.absent = sorted(waiting)
                self._on_absent(self.absent)
                return
            for task in self._ensemble.to_end(now):
                if task in self._links:
                    self._links[task].send(end=True)
            if self._ensemble.is_over(now):
                for link in list(self._links.values()):
                    link.send(leave=True)
                return

    def _note(self, task: Task, message: dict[str, Any] | None) -> None:
        now = time.monotonic()
        if message is None:
            if self._ensemble.is_running(task):
                lost = Failure(task, "its connection to the driver broke", Cause.LOST)
                self._ensemble.ended(task, lost, now)
        elif "ended" in message:
            told = message["ended"]
            failure = Failure(
                task, str(told["text"]), Cause(told["cause"]), bool(told["is_final"])
            ) if told else None  # fmt: skip
            self._ensemble.ended(task, failure, now)
