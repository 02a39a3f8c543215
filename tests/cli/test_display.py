"""The display of a running job."""

import io
import re
import threading

import pytest
from rich.console import Console
from rich.text import Text

from phalanx.cli.display import PlainDisplay, QueuedDisplay
from phalanx.cli.live_display import LiveDisplay
from phalanx.cluster.progress import RunProgress
from phalanx.cluster.spec import Role, Task
from phalanx.launch.base import TaskState, TaskStatus

TASKS = CHIEF, WORKER = Task(Role.CHIEF), Task(Role.WORKER, 10)


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


def test_live_display_shows_step_loss_speed_and_time_left() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40)
    progress = RunProgress(
        "chief-0", 1500, 3000, 0.1234, 812.3, 75.0, trainer_steps={"chief-0": 0, "worker-10": 1498}
    )
    with LiveDisplay([CHIEF, WORKER], console, lambda: progress) as display:
        display.changed(TaskStatus(CHIEF, TaskState.RUNNING, last_line="12:00:00 saved"))
    lines = Text.from_ansi(console.file.getvalue()).plain.splitlines()  # type: ignore[attr-defined]
    chief, worker = (next(line for line in lines if line.startswith(str(t))) for t in TASKS)
    assert chief.split() == ["chief-0", "running", "1,500", "0.1234", "812", "saved"]
    assert worker.split() == ["worker-10", "waiting", "1,498"]
    assert any(
        re.search("training  step 1,500 of 3,000  .*  50%  1:15 left", line) for line in lines
    )


def test_live_display_has_no_colours_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40)
    with LiveDisplay([CHIEF], console) as display:
        display.output(CHIEF, ["hello"])
        display.changed(TaskStatus(CHIEF, TaskState.FAILED))
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", console.file.getvalue())  # type: ignore[attr-defined]


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
