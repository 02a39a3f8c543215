"""Keeps the lines that TensorFlow's C++ runtime logs off the screen; the log files have them."""

import importlib
import os
import re
import sys
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from phalanx.cluster.spec import Task
from phalanx.launch.base import TaskStatus
from phalanx.launch.processes.process import LAST_LINES
from phalanx.launch.processes.supervisor import Observer

# Only lines that name a C++ file: a program may itself log through absl or TensorFlow in Python.
# Fatal errors (F) are shown.
_RUNTIME_LINE = re.compile(
    r"""
    [IWE]\d{4}\ [\d:.]+\s+\d+\ [\w./-]+\.(?:cc|cpp|cu|h|hpp|inc):\d+\]\      # absl
    | \d{4}-\d\d-\d\d\ [\d:.]+:\ [IWE]\ [\w./-]+\.(?:cc|cpp|cu|h|hpp|inc):\d+\]\  # TensorFlow
    | WARNING:\ All\ log\ messages\ before\ absl::InitializeLog\(\)
    | To\ enable\ the\ following\ instructions:
    | ERROR:tensorflow:Worker\ /job:                                # a worker is lost
    """,
    re.VERBOSE,
)


def is_runtime_line(line: str) -> bool:
    """Return whether TensorFlow's runtime wrote the line, and not the program.

    >>> is_runtime_line("I0000 00:00:1794966889.66  18019 port.cc:153] oneDNN custom operations")
    True
    >>> is_runtime_line("I1118 12:00:00.123456 139 train.py:12] a line of the program")
    False
    """
    return _RUNTIME_LINE.match(line) is not None


def import_tensorflow() -> None:
    """Import TensorFlow without the lines of its runtime; do nothing if it is not installed.

    TF_CPP_MIN_LOG_LEVEL alone is not enough: it has no effect on what TensorFlow logs until it is
    imported.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with hide_runtime_lines(), suppress(ImportError):
        tensorflow = importlib.import_module("tensorflow")
        if not Path("/dev/nvidiactl").exists():
            # Otherwise the first tensor reports that there is no driver.
            tensorflow.config.list_physical_devices()


# How messages of several lines continue: those of gRPC are not indented.
_CONTINUATIONS = (" ", "\t", "Additional GRPC error information from", ":UNKNOWN:")


@contextmanager
def hide_runtime_lines() -> Iterator[None]:
    """Show nothing that TensorFlow's runtime logs meanwhile."""
    sys.stderr.flush()
    screen = os.dup(2)
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(screen, 2)
            os.close(screen)
            written.seek(0)
            sys.stderr.writelines(line for line in written if not is_runtime_line(line))


class QuietObserver:
    """Passes on what is not of TensorFlow's runtime; and that too, if a task has to be restarted.

    When a task fails for good, the result of the job has its last lines.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._hidden: defaultdict[Task, deque[str]] = defaultdict(lambda: deque(maxlen=LAST_LINES))
        self._is_hiding: dict[Task, bool] = {}
        self._last: dict[Task, str] = {}
        self._restarts: dict[Task, int] = {}

    def output(self, task: Task, lines: list[str]) -> None:
        shown = [line for line in lines if not self._hides(task, line)]
        if shown:
            self._observer.output(task, shown)

    def changed(self, status: TaskStatus) -> None:
        task = status.task
        if status.restarts > self._restarts.get(task, 0):
            self._restarts[task] = status.restarts
            if hidden := self._hidden.pop(task, None):
                self._observer.output(task, list(hidden))
        line = status.last_line
        if not is_runtime_line(line) and line not in self._hidden.get(task, ()):
            self._last[task] = line
        self._observer.changed(replace(status, last_line=self._last.get(task, "")))

    def note(self, message: str) -> None:
        self._observer.note(message)

    def _hides(self, task: Task, line: str) -> bool:
        continues = self._is_hiding.get(task, False) and line.startswith(_CONTINUATIONS)
        self._is_hiding[task] = is_hidden = continues or is_runtime_line(line)
        if is_hidden:
            self._hidden[task].append(line)
        return is_hidden
