"""Shows the output and the progress of a job in the cell of a notebook, or on standard output."""

import html
import queue
import sys
from importlib import import_module
from typing import Any

from phalanx.cluster.progress import RunProgress
from phalanx.cluster.spec import Task
from phalanx.launch.base import TaskStatus


class CellOutput:
    """Queues what the tasks print, until the thread of the cell shows it.

    Output that another thread prints would appear in the wrong cell.
    """

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._bar: Any = None
        self._shown = ""

    def output(self, task: Task, lines: list[str]) -> None:
        for line in lines:
            self._lines.put(f"{task}: {line}")

    def changed(self, status: TaskStatus) -> None:
        """States are not shown: the last lines tell of failures."""

    def note(self, message: str) -> None:
        self._lines.put(message)

    def show(self, progress: RunProgress | None) -> None:
        """Print what is queued and, in a notebook, replace the progress bar."""
        while not self._lines.empty():
            print(self._lines.get(), flush=True)
        if progress is None or not _is_notebook():
            return
        text = draw_progress(progress)
        if text == self._shown:
            return
        shown = import_module("IPython.display")
        self._shown = text
        if self._bar is None:
            self._bar = shown.display(shown.HTML(text), display_id=True)
        else:
            self._bar.update(shown.HTML(text))


def draw_progress(progress: RunProgress) -> str:
    """Draw the progress of a run as HTML."""
    facts = [f"step {progress.step:,}" + (f" of {progress.total:,}" if progress.total else "")]
    if progress.loss is not None:
        facts.append(f"loss {progress.loss:.4g}")
    if progress.examples_per_second:
        facts.append(f"{progress.examples_per_second:,.0f} examples/s")
    if progress.seconds_left and progress.activity != "finished":
        minutes, seconds = divmod(round(progress.seconds_left), 60)
        facts.append(f"{minutes}:{seconds:02d} left")
    facts.append(progress.activity)
    share = f' value="{progress.step}" max="{progress.total}"' if progress.total else ""
    bar = "" if progress.activity == "finished" and not share else f"<progress{share}></progress> "
    return f"<div>{bar}{html.escape(', '.join(facts))}</div>"


def _is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")
