"""The display of a running job on a terminal: its output, a live table, and a progress bar."""

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from phalanx.cli.display import format_duration
from phalanx.cli.terminal import colour_state
from phalanx.cluster.progress import RunProgress
from phalanx.cluster.spec import Role, Task
from phalanx.launch.base import TaskState, TaskStatus
from phalanx.printable import make_printable

_COLOURS = {
    Role.CHIEF: "green",
    Role.WORKER: "cyan",
    Role.PS: "magenta",
    Role.EVALUATOR: "yellow",
    Role.DISPATCHER: "blue",
    Role.DATA_WORKER: "blue",
}
# The order in which tasks are shown when the terminal has no room for all.
_URGENCY = [
    TaskState.FAILED,
    TaskState.RUNNING,
    TaskState.WAITING,
    TaskState.DONE,
    TaskState.ENDED,
]


class LiveDisplay:
    """Shows the merged output of the tasks, below it a table of them, and a progress bar."""

    def __init__(
        self,
        tasks: Sequence[Task],
        console: Console,
        read_progress: Callable[[], RunProgress | None] = lambda: None,
    ) -> None:
        self._statuses = {task: TaskStatus(task, TaskState.WAITING) for task in tasks}
        self._console = console
        self._read_progress = read_progress
        self._width = max(len(str(task)) for task in tasks)
        self._started = time.monotonic()
        self._live = Live(console=console, get_renderable=self._render, refresh_per_second=4)

    def __enter__(self) -> Self:
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
        self._console.print(Text(f"phalanx: {make_printable(message)}", style="bold"))

    def _render(self) -> RenderableType:
        progress = self._read_progress()
        table = self._make_table(progress)
        seconds = time.monotonic() - self._started
        # A line as wide as the terminal wraps when the terminal echoes ^C into it.
        width = self._console.width - 1
        return Group(table, _make_bar(progress, seconds, width))

    def _make_table(self, progress: RunProgress | None) -> Table:
        statuses = list(self._statuses.values())
        room = max(3, self._console.height // 2 - 5)
        shown = statuses
        if len(statuses) > room:
            by_urgency = sorted(statuses, key=lambda status: _URGENCY.index(status.state))
            shown = sorted(by_urgency[:room], key=lambda status: status.task)
        numbers = ("step", "loss", "examples/s") if progress else ()
        table = Table(
            width=self._console.width - 1, box=None, header_style="dim", padding=(0, 2, 0, 0)
        )
        for name in ("task", "state"):
            table.add_column(name, no_wrap=True)
        for name in (*numbers, "restarts"):
            table.add_column(name, no_wrap=True, justify="right")
        table.add_column("last line", no_wrap=True, overflow="ellipsis", ratio=1)
        for status in shown:
            table.add_row(
                Text(str(status.task), style=_COLOURS[status.task.role]),
                colour_state(status.state.value),
                *(_describe_trainer(status.task, progress) if progress else ()),
                Text(str(status.restarts), "yellow") if status.restarts else "",
                Text.from_ansi(_strip_time(status.last_line)),
            )
        if len(shown) < len(statuses):
            states = Counter(status.state.value for status in statuses)
            counts = ", ".join(f"{count} {state}" for state, count in states.items())
            table.add_row("…", *[""] * (2 + len(numbers)), f"{len(statuses)} tasks: {counts}")
        return table


def _describe_trainer(task: Task, progress: RunProgress) -> tuple[str, str, str]:
    """Return step, loss and speed: those of the run in the row of its chief, else the steps."""
    if str(task) != progress.task:
        own = progress.trainer_steps.get(str(task))
        slow = "slow " if str(task) in progress.stragglers else ""
        return ("" if own is None else f"{slow}{own:,}", "", "")
    loss = "" if progress.loss is None else f"{progress.loss:.4g}"
    speed = progress.examples_per_second
    return (f"{progress.step:,}", loss, "" if speed is None else f"{speed:,.0f}")


def _make_bar(progress: RunProgress | None, seconds: float, width: int) -> Table:
    line = Table.grid(padding=(0, 2, 0, 0))
    elapsed = Text(format_duration(seconds), style="dim")
    if progress is None:
        line.add_row(Text(f"elapsed {format_duration(seconds)}", style="dim"))
    elif progress.total is None:
        line.add_row(progress.activity, f"step {progress.step:,}", elapsed)
    else:
        share = progress.step / max(1, progress.total)
        left = progress.seconds_left
        line.add_row(
            progress.activity,
            f"step {progress.step:,} of {progress.total:,}",
            ProgressBar(total=1.0, completed=share, width=max(10, min(40, width - 70))),
            f"{share:.0%}",
            "" if left is None or share >= 1 else f"{format_duration(left)} left",
            elapsed,
        )
    return line


def _strip_time(line: str) -> str:
    """Remove the time at the start of a line of the log, which the table has no room for."""
    return re.sub(r"^\d\d:\d\d:\d\d ", "", line)
