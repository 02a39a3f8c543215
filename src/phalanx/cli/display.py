"""The display of a running job: a live table on a terminal, plain lines in a pipe."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from phalanx.cluster.spec import Role, Task
from phalanx.launch.base import TaskState, TaskStatus
from phalanx.launch.processes.supervisor import NullObserver, Observer

_COLOURS = {
    Role.CHIEF: "green",
    Role.WORKER: "cyan",
    Role.PS: "magenta",
    Role.EVALUATOR: "yellow",
    Role.DISPATCHER: "blue",
    Role.DATA_WORKER: "blue",
}
_STATE_COLOURS = {
    TaskState.WAITING: "dim",
    TaskState.RUNNING: "bold",
    TaskState.DONE: "green",
    TaskState.FAILED: "bold red",
    TaskState.ENDED: "dim",
}
# The order in which tasks are shown when the terminal has no room for all.
_URGENCY = [TaskState.FAILED, TaskState.RUNNING, TaskState.WAITING, TaskState.DONE, TaskState.ENDED]


class QueuedDisplay:
    """An observer that forwards its calls to a display in another thread.

    A write blocks while the reader of the output is slow. The tasks may wait for that, but ending
    the job may not: after `drop_if_full` a full queue drops output and blocks nobody.
    """

    def __init__(self, on_closed: Callable[[], None]) -> None:
        self._on_closed = on_closed
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(maxsize=1000)
        self._drop_if_full = threading.Event()
        self._display: Observer = NullObserver()
        self._thread = threading.Thread(target=self._run, name="phalanx-display", daemon=True)

    def start(self, display: Observer) -> None:
        """Show the calls so far, and all later ones, on this display."""
        self._display = display
        self._thread.start()

    def drop_if_full(self) -> None:
        """From now on, drop output when the queue is full."""
        self._drop_if_full.set()

    def finish(self, seconds: float) -> bool:
        """Show what is queued; return False if that took too long."""
        self._put(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def output(self, task: Task, lines: list[str]) -> None:
        self._put(lambda: self._display.output(task, lines))

    def changed(self, status: TaskStatus) -> None:
        self._put(lambda: self._display.changed(status))

    def note(self, message: str) -> None:
        self._put(lambda: self._display.note(message))

    def _put(self, call: Callable[[], None] | None) -> None:
        while True:
            try:
                return self._calls.put(call, timeout=0.1)
            except queue.Full:
                if self._drop_if_full.is_set():
                    return None

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BrokenPipeError:
                self._display = NullObserver()
                self._on_closed()
            except (OSError, ValueError):
                # A full disk or a closed terminal must not end the job.
                self._display = NullObserver()


class PlainDisplay:
    """Prints each line with the name of its task to stdout, and messages of Phalanx to stderr."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._width = max(len(str(task)) for task in tasks)

    def output(self, task: Task, lines: list[str]) -> None:
        # One write for all lines, so that the lines of two tasks never mix.
        name = str(task).ljust(self._width)
        _write(sys.stdout, "".join(f"{name} | {line}\n" for line in lines))

    def changed(self, status: TaskStatus) -> None:
        """State changes are not printed."""

    def note(self, message: str) -> None:
        _write(sys.stderr, f"phalanx: {message}\n")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        # At exit the interpreter would flush the buffer and raise this again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


class LiveDisplay:
    """Shows the merged output of the tasks, and below it a table of their states."""

    def __init__(self, tasks: Sequence[Task], console: Console) -> None:
        self._statuses = {task: TaskStatus(task, TaskState.WAITING) for task in tasks}
        self._console = console
        self._width = max(len(str(task)) for task in tasks)
        self._started = time.monotonic()
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4)

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *reason: object) -> None:
        # The terminal may be closed.
        with contextlib.suppress(OSError, ValueError):
            self._live.stop()

    def output(self, task: Task, lines: list[str]) -> None:
        name = f"{str(task).ljust(self._width)} | "
        text = Text()
        for line in lines:
            text.append(name, _COLOURS[task.role])
            text.append(Text.from_ansi(line) if "\x1b" in line else line).append("\n")
        # The terminal wraps long lines: that is much faster, and they can be copied.
        self._console.print(text, end="", soft_wrap=True)

    def changed(self, status: TaskStatus) -> None:
        self._statuses[status.task] = status

    def note(self, message: str) -> None:
        self._console.print(Text(f"phalanx: {message}", style="bold"))

    def _render(self) -> Table:
        statuses = list(self._statuses.values())
        seconds = time.monotonic() - self._started
        room = max(3, self._console.height // 2 - 4)
        shown = statuses
        if len(statuses) > room:
            by_urgency = sorted(statuses, key=lambda status: _URGENCY.index(status.state))
            shown = sorted(by_urgency[:room], key=lambda status: status.task)
        # A line as wide as the terminal wraps when the terminal echoes ^C into it.
        width = self._console.width - 1
        table = Table(width=width, box=None, header_style="dim", padding=(0, 2, 0, 0))
        table.add_column("task", no_wrap=True)
        table.add_column("state", no_wrap=True)
        table.add_column("restarts", justify="right")
        table.add_column(f"last line ({seconds:.0f} s)", no_wrap=True, overflow="ellipsis", ratio=1)
        for status in shown:
            table.add_row(
                Text(str(status.task), style=_COLOURS[status.task.role]),
                Text(status.state.value, style=_STATE_COLOURS[status.state]),
                str(status.restarts) if status.restarts else "",
                Text.from_ansi(status.last_line),
            )
        if len(shown) < len(statuses):
            states = Counter(status.state.value for status in statuses)
            counts = ", ".join(f"{count} {state}" for state, count in states.items())
            table.add_row("…", "", "", f"{len(statuses)} tasks: {counts}")
        return table
