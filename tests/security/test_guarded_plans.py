"""Every backend starts its tasks under `phalanx guard`, unless the user has switched it off."""

from pathlib import Path

import pytest
from tests.cli.in_process import invoke
from tests.security.test_job_secret import BACKENDS

GUARD = "-m phalanx guard -- "


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")


def plan(backend: str, *options: str) -> str:
    given = ["--workers", "2", "--ps", "1", *options, "--dry-run", "train.py"]
    done = invoke("launch", backend, *BACKENDS[backend], *given)
    assert done.returncode == 0, done.stderr
    return done.stdout


# The actors of Ray plan the guard on their nodes.
@pytest.mark.parametrize("backend", [each for each in BACKENDS if each != "ray"])
def test_tasks_are_started_under_the_guard(backend: str) -> None:
    guarded = plan(backend)
    assert GUARD in guarded
    # A plan has the command of each task, or one that all tasks of a job or role share.
    assert guarded.count("train.py") <= 2 * guarded.count(GUARD)
    assert GUARD not in plan(backend, "--env", "PHALANX_GUARD=off")


@pytest.mark.parametrize("backend", BACKENDS)
def test_settings_of_the_guard_reach_the_tasks(backend: str) -> None:
    settings = ["PHALANX_GUARD=required", "PHALANX_GUARD_ALLOW=10.0.0.7"]
    text = plan(backend, *(word for each in settings for word in ("--env", each)))
    for name in ("PHALANX_GUARD", "PHALANX_GUARD_ALLOW"):
        assert name in text.replace("$PHALANX_GUARD", "")
    if backend != "docker":
        assert "10.0.0.7" in text
