"""What Phalanx writes about a job is private: plans, records and logs can hold secrets."""

from __future__ import annotations

import os
import stat
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phalanx.cluster.spec import Role, Task
from phalanx.launch.generated_file import header, write_generated
from phalanx.launch.job_store import JobRecord, JobStore
from phalanx.launch.private_files import open_private, write_atomically
from phalanx.launch.processes.background import BackgroundHandle
from phalanx.launch.processes.guardian import RUN_ID_VARIABLE, TASK_VARIABLE
from phalanx.launch.processes.plan import ProcessPlan, TaskPlan
from phalanx.serving.access import read_token

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """The permissions of everything in a folder."""
    found = {str(each.relative_to(folder)): each.stat().st_mode for each in folder.rglob("*")}
    return {name: oct(stat.S_IMODE(mode)) for name, mode in sorted(found.items())}


def test_logs_of_a_local_run(phalanx: Phalanx, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    (tmp_path / "mine/chief-0.log").write_text("of an earlier run")
    for folder in ("new/logs", "mine"):
        assert phalanx("run", "--log-dir", folder, "--", "env").returncode == 0
    assert modes(tmp_path) == {
        "mine": "0o755",
        "mine/chief-0.log": "0o600",
        "new": "0o700",
        "new/logs": "0o700",
        "new/logs/chief-0.log": "0o600",
    }


def test_plan_and_state_of_a_background_job(tmp_path: Path) -> None:
    marks = {RUN_ID_VARIABLE: uuid.uuid4().hex, TASK_VARIABLE: "chief-0", "TOKEN": "s3cret"}
    task = TaskPlan(Task(Role.CHIEF), ("true",), marks, tmp_path / "jobs/a/chief-0.log")
    handle = BackgroundHandle.submit(
        ProcessPlan((task,), marks[RUN_ID_VARIABLE]), tmp_path / "jobs/a"
    )
    assert handle.wait(60) is not None
    found = modes(tmp_path)
    assert {"jobs/a/status.json", "jobs/a/chief-0.log", "jobs/a/supervisor.log"} <= set(found)
    assert {each: found.pop(each) for each in ("jobs", "jobs/a")} == dict.fromkeys(
        ("jobs", "jobs/a"), "0o700"
    )
    assert set(found.values()) == {"0o600"}


def test_job_record(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir(mode=0o755)
    JobStore(tmp_path / "jobs").write(JobRecord("digits", "ssh"))
    assert modes(tmp_path) == {"jobs": "0o700", "jobs/digits.json": "0o600"}


def test_token_that_others_can_read_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef\n")
    with caplog.at_level("WARNING", "phalanx"):
        path.chmod(0o600)
        assert read_token(str(path)) == "0123456789abcdef"
        assert not caplog.records
        path.chmod(0o640)
        assert read_token(str(path)) == "0123456789abcdef"
    assert f"chmod 600 {path}" in caplog.text
    assert "0123456789abcdef" not in caplog.text


def test_compose_file(tmp_path: Path) -> None:
    path = tmp_path / "digits.compose.yaml"
    path.write_text(header("launch compose"))
    write_generated(path, "services: {}", "launch compose", private=True)
    assert modes(tmp_path) == {"digits.compose.yaml": "0o600"}


@pytest.mark.parametrize("make", [os.symlink, os.link])
def test_links_that_others_made_are_not_followed(
    tmp_path: Path, make: Callable[[Path, Path], None]
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    precious.chmod(0o640)
    make(precious, tmp_path / "chief-0.log")
    with open_private(tmp_path / "chief-0.log", "wb") as file:
        file.write(b"output")
    assert precious.read_text() == "mine"
    assert modes(tmp_path) == {"chief-0.log": "0o600", "precious": "0o640"}


def test_new_file_does_not_become_part_of_what_others_made(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.with_suffix(".new").symlink_to(tmp_path / "elsewhere")
    write_atomically(path, b"{}")
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_link_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "chief-0.log").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic link"):
        open_private(tmp_path / "chief-0.log", "ab")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_file_of_another_user_is_replaced_and_not_continued(tmp_path: Path) -> None:
    path = tmp_path / "chief-0.log"
    path.touch()
    os.chown(path, 12345, 12345)
    path.chmod(0o666)
    with pytest.raises(PermissionError, match="belongs to another user"):
        open_private(path, "ab")
    with open_private(path, "wb") as file:
        file.write(b"output")
    assert path.stat().st_uid == 0
    assert modes(tmp_path) == {"chief-0.log": "0o600"}
