"""Submitting, recording and forgetting a job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NoReturn

import pytest
from tests.cli.in_process import invoke

from phalanx.cli.launch.submission import launch
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.job_store import JobRecord, JobStore


@pytest.fixture(autouse=True)
def program(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()


def test_job_that_cannot_be_recorded_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waiting:
        cancelled = False

        def facts(self) -> NoReturn:
            raise KeyboardInterrupt

        def cancel(self) -> None:
            self.cancelled = True

    class Quick:
        handle = Waiting()

        def plan(self, job: Job) -> None:
            """Nothing to do."""

        def submit(self, plan: None) -> Waiting:
            return self.handle

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    launcher: Any = Quick()
    job = Job("digits", Program(ProgramKind.FILE, "train.py"))
    with pytest.raises(KeyboardInterrupt):
        launch("quick", launcher, job, {"dry_run": False})
    assert launcher.handle.cancelled


@pytest.mark.parametrize(
    ("launcher", "facts", "why"),
    [
        ("slurm", {"number": "7", "log_dir": "x", "counts": {}}, "there is no command scontrol"),
        ("slurm", {"id": 7}, "digits was launched by another version of Phalanx"),
        ("ssh", {"directory": None}, "digits was launched by another version of Phalanx"),
    ],
)
def test_job_of_an_unavailable_backend_can_be_forgotten(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launcher: str,
    facts: dict[str, object],
    why: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    JobStore.of_user().write(JobRecord("digits", launcher, facts))
    shown = invoke("status").stdout
    assert re.search(rf"^digits  {launcher} +unknown: {why}", shown, re.MULTILINE), shown
    again = invoke("launch", "slurm", "--name", "digits", "train.py")
    assert again.returncode == 2
    assert f"already a job 'digits' ({launcher}), and its state is unknown" in again.stderr
    refused = invoke("cancel", "digits")
    assert refused.returncode == 1
    assert why in refused.stderr
    assert "delete the record with: phalanx cancel --forget digits" in refused.stderr
    forgotten = invoke("cancel", "--forget", "digits")
    assert forgotten.returncode == 0
    assert "the record of digits is deleted; tasks that still run are not ended" in forgotten.stderr
    assert invoke("cancel", "--forget", "digits").returncode == 2
