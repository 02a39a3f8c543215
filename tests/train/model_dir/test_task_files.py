"""The task files of a run."""

import json
import logging
from pathlib import Path

import pytest

from phalanx.cluster.spec import Role, Task
from phalanx.train.model_dir.task_files import (
    TaskReport,
    current_task_file,
    read_task_files,
    report_task,
)

CHIEF, WORKER = Task(Role.CHIEF), Task(Role.WORKER)


def kinds(report: TaskReport) -> list[str]:
    return [event.kind for event in report.events]


def test_task_that_ends_is_done(tmp_path: Path) -> None:
    with report_task(str(tmp_path), CHIEF, leads=True):
        [report] = read_task_files(tmp_path)
        assert report.state == "running"
        logging.getLogger("phalanx").warning("a line of the log")
    [report] = read_task_files(tmp_path)
    assert (report.state, report.leads, report.restarts) == ("done", True, 0)
    assert kinds(report) == ["started", "done"]
    assert report.log[-1].endswith("a line of the log")
    assert current_task_file() is None


def test_task_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ValueError), report_task(str(tmp_path), CHIEF, leads=True):
        raise ValueError("no data")
    [report] = read_task_files(tmp_path)
    assert (report.state, report.reason) == ("failed", "no data")
    assert kinds(report) == ["started", "failed"]


def test_restarted_task_continues_the_file_and_tells_that_it_was_lost(tmp_path: Path) -> None:
    with report_task(str(tmp_path), CHIEF, leads=True):
        pass
    path = tmp_path / "cluster/chief-0.json"
    killed = json.loads(path.read_text())
    path.write_text(json.dumps({**killed, "state": "running", "pid": killed["pid"] + 1}))
    with report_task(str(tmp_path), CHIEF, leads=True):
        [report] = read_task_files(tmp_path)
    assert report.restarts == 1
    assert kinds(report) == ["started", "done", "lost", "started"]
    assert "it was killed, or its host is gone" in report.events[2].text


def test_only_the_chief_creates_the_directory(tmp_path: Path) -> None:
    with report_task(str(tmp_path), WORKER, leads=False):
        pass
    assert list(tmp_path.iterdir()) == []
    with report_task(None, WORKER, leads=False), report_task("gs://bucket/x", CHIEF, leads=True):
        assert current_task_file() is None


def test_task_file_is_bounded(tmp_path: Path) -> None:
    with report_task(str(tmp_path), CHIEF, leads=True):
        file = current_task_file()
        assert file is not None
        for number in range(1000):
            file.add_event("saved", "x" * 1000, number)
            file.add_line("y" * 1000)
    assert (tmp_path / "cluster/chief-0.json").stat().st_size < 100_000
    [report] = read_task_files(tmp_path)
    assert report.events[-2].step == 999


def test_unwritable_directory_does_not_end_the_task(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with report_task(str(tmp_path / "file"), CHIEF, leads=True):
        pass
