"""The display of a running job."""

from __future__ import annotations

import io
import threading

import pytest
from rich.console import Console

from phalanx.cli.display import LiveDisplay, PlainDisplay, QueuedDisplay
from phalanx.cluster.spec import Role, Task
from phalanx.launch.base import TaskState, TaskStatus

CHIEF, WORKER = Task(Role.CHIEF), Task(Role.WORKER, 10)


class ClosedDisplay(PlainDisplay):
    """A display whose reader has closed the pipe."""

    def output(self, task: Task, lines: list[str]) -> None:
        raise BrokenPipeError


class BlockedDisplay(PlainDisplay):
    """A display whose reader does not read until it is released."""

    def __init__(self) -> None:
        super().__init__([CHIEF])
        self.release = threading.Event()

    def output(self, task: Task, lines: list[str]) -> None:
        self.release.wait(60)


def test_plain_display_prefixes_lines_with_aligned_task_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    display = PlainDisplay([CHIEF, WORKER])
    display.output(CHIEF, ["one", "two"])
    display.output(WORKER, ["three"])
    display.note("started")
    out, err = capsys.readouterr()
    assert out == "chief-0   | one\nchief-0   | two\nworker-10 | three\n"
    assert err == "phalanx: started\n"


def test_live_display_shows_output_and_task_states() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=40)
    with LiveDisplay([CHIEF, WORKER], console) as display:
        display.output(CHIEF, ["step 1"])
        display.changed(TaskStatus(WORKER, TaskState.FAILED, restarts=2, last_line="OOM"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "step 1" in text
    assert "failed" in text
    assert "OOM" in text


def test_live_display_shows_failed_tasks_first_if_there_is_no_room() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80, height=14)
    tasks = [Task(Role.WORKER, index) for index in range(50)]
    with LiveDisplay(tasks, console) as display:
        display.changed(TaskStatus(tasks[49], TaskState.FAILED))
    last_frame = console.file.getvalue().rpartition("last line")[2]  # type: ignore[attr-defined]
    assert "worker-49" in last_frame
    assert "50 tasks: 49 waiting, 1 failed" in last_frame


def test_queued_display_shows_calls_from_before_its_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    queued = QueuedDisplay(on_closed=lambda: None)
    queued.output(CHIEF, ["early"])
    queued.start(PlainDisplay([CHIEF]))
    queued.output(CHIEF, ["late"])
    assert queued.finish(60)
    assert capsys.readouterr().out == "chief-0 | early\nchief-0 | late\n"


def test_queued_display_reports_a_closed_pipe() -> None:
    closed = threading.Event()
    queued = QueuedDisplay(on_closed=closed.set)
    queued.start(ClosedDisplay([CHIEF]))
    queued.output(CHIEF, ["one"])
    assert queued.finish(60)
    assert closed.is_set()


def test_queued_display_drops_output_of_a_blocked_reader_on_request() -> None:
    queued = QueuedDisplay(on_closed=lambda: None)
    display = BlockedDisplay()
    queued.start(display)
    queued.drop_if_full()
    for _ in range(1005):
        queued.output(CHIEF, ["one"])
    assert not queued.finish(0.1)
    display.release.set()
