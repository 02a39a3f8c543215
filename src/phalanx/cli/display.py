"""What a person sees of a running job: a live table on a terminal, plain lines in a pipe."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import IO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from phalanx.cluster.spec import Role, Task
from phalanx.launch.base import TaskState, TaskStatus

_COLOURS = {
    Role.CHIEF: "green",
    Role.WORKER: "cyan",
    Role.PS: "magenta",
    Role.EVALUATOR: "yellow",
}
_STATE_COLOURS = {
    TaskState.WAITING: "dim",
    TaskState.RUNNING: "bold",
    TaskState.DONE: "green",
    TaskState.FAILED: "bold red",
    TaskState.ENDED: "dim",
}
# Those a person wants to see first, when there is no room for all.
_URGENCY = [TaskState.FAILED, TaskState.RUNNING, TaskState.WAITING, TaskState.DONE, TaskState.ENDED]


class PlainDisplay:
    """Each line with its task's name on stdout; what the launcher has to say on stderr."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self._width = max(len(str(task)) for task in tasks)

    def output(self, task: Task, lines: list[str]) -> None:
        """One write for all lines, so that lines of tasks are never mixed."""
        name = str(task).ljust(self._width)
        self._write(sys.stdout, "".join(f"{name} | {line}\n" for line in lines))

    def changed(self, status: TaskStatus) -> None:
        """Starts and ends that went as they should need no words."""

    def note(self, message: str) -> None:
        """A line of the launcher's own."""
        self._write(sys.stderr, f"phalanx: {message}\n")

    def _write(self, stream: IO[str], text: str) -> None:
        try:
            stream.write(text)
            stream.flush()
        except BrokenPipeError:
            # What is still in the buffer would raise this again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            raise


class LiveDisplay:
    """The tasks' merged output, and under it a table of what each one is doing."""

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
        self._live.stop()

    def output(self, task: Task, lines: list[str]) -> None:
        """Above the table, in the task's colour."""
        name = Text(f"{str(task).ljust(self._width)} | ", style=_COLOURS[task.role])
        shown = [Text.assemble(name, Text.from_ansi(line)) for line in lines]
        for line in reversed(lines):
            if line.strip():
                self._statuses[task] = replace(self._statuses[task], last_line=line)
                break
        self._console.print(Group(*shown))

    def changed(self, status: TaskStatus) -> None:
        """The table shows it at its next refresh."""
        self._statuses[status.task] = status

    def note(self, message: str) -> None:
        """Above the table, in bold."""
        self._console.print(Text(f"phalanx: {message}", style="bold"))

    def _render(self) -> Table:
        statuses = list(self._statuses.values())
        seconds = time.monotonic() - self._started
        room = max(3, self._console.height // 2 - 4)
        shown = statuses
        if len(statuses) > room:
            by_urgency = sorted(statuses, key=lambda status: _URGENCY.index(status.state))
            shown = sorted(by_urgency[:room], key=lambda status: status.task)
        table = Table(expand=True, box=None, header_style="dim", padding=(0, 2, 0, 0))
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


def count_roles(tasks: Sequence[Task]) -> str:
    """The tasks in a few words.

    >>> count_roles([Task(Role.CHIEF), Task(Role.WORKER, 0), Task(Role.WORKER, 1)])
    '1 chief, 2 workers'
    """
    counts = Counter(task.role for task in tasks)
    plural = {Role.WORKER: "workers"}
    return ", ".join(
        f"{count} {plural.get(role, role) if count > 1 else role}" for role, count in counts.items()
    )
