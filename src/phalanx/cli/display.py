"""The display of a running job in a pipe, and the queue in front of every display."""

import os
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TextIO

from phalanx.cluster.spec import Task
from phalanx.launch.base import TaskStatus
from phalanx.launch.processes.supervisor import NullObserver, Observer
from phalanx.printable import make_printable


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
        _write(sys.stderr, f"phalanx: {make_printable(message)}\n")


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        # At exit the interpreter would flush the buffer and raise this again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


def format_duration(seconds: float) -> str:
    """Write a duration as a clock does.

    >>> format_duration(75), format_duration(7325)
    ('1:15', '2:02:05')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
