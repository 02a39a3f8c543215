"""A job with a supervisor of its own: what stays of it when its start is broken off."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from typing import NoReturn

import pytest
from tests.servers.processes import wait_for

from phalanx import LaunchError
from phalanx.cluster.spec import Role, Task
from phalanx.launch.backends.swarm import SwarmLauncher
from phalanx.launch.containers.container import Container
from phalanx.launch.job import Job, Program, ProgramKind
from phalanx.launch.processes.background import BackgroundHandle
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE, find_run_processes
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan

DOCKER = """\
#!/bin/sh
echo "$*" >> {calls}
case $1 in info) echo active true ;; esac
"""


def test_interrupted_submit_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = {RUN_ID_VARIABLE: uuid.uuid4().hex, TASK_VARIABLE: "chief-0"}
    task = TaskPlan(Task(Role.CHIEF), ("sleep", "1000"), marks, tmp_path / "job/chief-0.log")

    def interrupt(seconds: float) -> NoReturn:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(time, "sleep", interrupt)
        BackgroundHandle.submit(ProcessPlan((task,), marks[RUN_ID_VARIABLE]), tmp_path / "job")
    assert not (tmp_path / "job").exists()
    wait_for(lambda: not find_run_processes(marks[RUN_ID_VARIABLE]))


def test_stack_is_removed_if_the_state_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker, calls = tmp_path / "docker", tmp_path / "calls"
    docker.write_text(DOCKER.format(calls=calls))
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (tmp_path / "file").touch()
    launcher = SwarmLauncher(Container("digits:1"), tmp_path / "file/digits", "r1")
    plan = launcher.plan(Job("digits", Program(ProgramKind.FILE, "train.py")))
    with pytest.raises(LaunchError, match=r"state cannot be written to .*: Not a directory"):
        launcher.submit(plan)
    *_, deployed, removed = calls.read_text().splitlines()
    assert deployed.startswith("stack deploy")
    assert removed == "stack rm digits"
