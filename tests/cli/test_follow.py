"""Following a job across outages of its backend, and with a closed pipe."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import phalanx.cli.follow
from phalanx import LaunchError
from phalanx.cli.follow import follow_job
from phalanx.cluster.spec import Role, Task
from phalanx.launch.base import JobResult, TaskState, TaskStatus
from phalanx.launch.job_store import JobRecord, JobStore

TASKS = (Task(Role.CHIEF), Task(Role.WORKER))


class UnreliableHandle:
    """A job whose backend does not answer the first requests."""

    def __init__(self, failures: int) -> None:
        self._left = dict.fromkeys([*map(str, TASKS), "result"], failures)

    def status(self) -> list[TaskStatus]:
        return [TaskStatus(task, TaskState.RUNNING) for task in TASKS]

    def logs(self, task: Task, follow: bool = False) -> Iterator[str]:
        yield "one"
        self._fail(str(task))
        yield "two"

    def cancel(self) -> None:
        raise AssertionError

    def wait(self, timeout: float | None = None) -> JobResult:
        self._fail("result")
        return JobResult(0, "succeeded")

    def _fail(self, asked: str) -> None:
        if self._left[asked]:
            self._left[asked] -= 1
            raise LaunchError("scontrol: no answer")


@pytest.fixture(autouse=True)
def retry_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phalanx.cli.follow, "_RETRY_SECONDS", 0.0)


def test_backend_is_asked_again_after_an_outage(capfd: pytest.CaptureFixture[str]) -> None:
    assert follow_job("digits", UnreliableHandle(failures=1)) == 0
    stdout, stderr = capfd.readouterr()
    assert sorted(stdout.splitlines()) == [
        "chief-0  | one",
        "chief-0  | two",
        "worker-0 | one",
        "worker-0 | two",
    ]
    assert "phalanx: scontrol: no answer; trying again\n" in stderr
    assert stderr.endswith("phalanx: digits succeeded\n")


def test_outage_beyond_the_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phalanx.cli.follow, "_OUTAGE_LIMIT_SECONDS", 0.0)
    with pytest.raises(LaunchError, match="no answer"):
        follow_job("digits", UnreliableHandle(failures=1000))


def test_closed_pipe_ends_the_command_and_not_the_job(
    tmp_path: Path, start_phalanx: Callable[..., subprocess.Popen[str]], environ: dict[str, str]
) -> None:
    scontrol, log = tmp_path / "scontrol", tmp_path / "chief-0.log"
    scontrol.write_text("#!/bin/sh\necho JobState=RUNNING\n")
    scontrol.chmod(0o755)
    environ["PATH"] = f"{tmp_path}{os.pathsep}{environ['PATH']}"
    environ["XDG_STATE_HOME"] = str(tmp_path)
    facts = {"number": "7", "log_dir": str(tmp_path), "counts": {"chief": 1}}
    JobStore.of_user(environ).write(JobRecord("digits", "slurm", facts))
    log.write_text("one\n")
    process = start_phalanx("logs", "-f", "digits")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "chief-0 | one\n"
    process.stdout.close()
    log.write_text("one\ntwo\n")
    assert process.wait(250) == 1
    assert process.stderr.read() == ""
