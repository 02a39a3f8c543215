"""phalanx.toml, and errors in it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.in_process import invoke

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def program(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()


def plan(phalanx: Phalanx, *arguments: object) -> str:
    done = phalanx("launch", "slurm", "--dry-run", "--show-secrets", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


FILE = """
name = "digits"
program = "train.py"
arguments = ["--rate", 0.1]
workers = 2
evaluator = true
cpus = { worker = 4, chief = 1, evaluator = 1 }

[env]
SEED = 7

[slurm]
partition = "gpu"
workers = 3

[ssh]
host = ["a", "b"]
"""


def test_job_file_sets_all_options(phalanx: Phalanx, tmp_path: Path) -> None:
    (tmp_path / "phalanx.toml").write_text(FILE)
    text = plan(phalanx)
    assert "--job-name=digits\n" in text
    assert "--partition=gpu\n" in text
    assert "count=([chief]=1 [worker]=3 [evaluator]=1) cpus=([chief]=1 [worker]=4" in text
    assert "export SEED=7\n" in text
    assert " train.py --rate 0.1\n" in text


def test_command_line_overrides_the_job_file(phalanx: Phalanx, tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text(FILE)
    text = plan(phalanx, "-f", "my.toml", "--workers", 5, "--env", "SEED=8", "train.py", "--fast")
    assert "[worker]=5" in text
    assert "export SEED=8\n" in text
    assert " train.py --fast\n" in text


def test_one_file_serves_several_backends(phalanx: Phalanx, tmp_path: Path) -> None:
    (tmp_path / "phalanx.toml").write_text(FILE)
    done = phalanx("launch", "ssh", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert '"worker": ["b:2222", "a:2223"]' in done.stdout


def test_help_works_whatever_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "phalanx.toml").write_text("wrokers = 2")
    for flag in ("--help", "-h"):
        assert invoke("launch", "slurm", flag).returncode == 0
    # This one is the program's.
    assert invoke("launch", "slurm", "--dry-run", "train.py", "--help").returncode == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("wrokers = 2", "phalanx.toml: there is no setting 'wrokers': did you mean workers?"),
        ("workers = 'two'", "Invalid value for '--workers': 'two'"),
        ("workers = [2]", "workers must be a single value"),
        ("evaluator = 1", "evaluator must be true or false, not 1"),
        ("name = true", "name must be a number or a text, not True"),
        ("slurm = 3", "slurm must be a table"),
        ("workers = ", "phalanx.toml cannot be read: "),
        ("[slurm]\nhost = 'a'", "there is no setting 'host'"),
    ],
)
def test_wrong_job_file_is_rejected(
    phalanx: Phalanx, tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "phalanx.toml").write_text(content)
    done = phalanx("launch", "slurm", "--dry-run", "train.py")
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
