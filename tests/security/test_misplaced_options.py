"""An option of Phalanx after PROGRAM: `--dry-run` there would really submit the job."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Phalanx = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(autouse=True)
def program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys; print(*sys.argv[1:]); open('started', 'w')")


@pytest.mark.parametrize(
    "command", [["run"], ["launch", "ssh", "--host", "127.0.0.1"], ["launch", "slurm"]]
)
@pytest.mark.parametrize("option", [["--dry-run"], ["--workers", "2"], ["--workers=2"]])
def test_option_after_program_stops_before_anything_starts(
    phalanx: Phalanx, tmp_path: Path, command: list[str], option: list[str]
) -> None:
    done = phalanx(*command, "train.py", *option, XDG_STATE_HOME=str(tmp_path / "state"))
    assert done.returncode == 2
    flag = option[0].partition("=")[0]
    assert f"{flag} comes after train.py and would go to the program" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


def test_double_dash_after_program_gives_it_any_option(phalanx: Phalanx) -> None:
    done = phalanx("run", "train.py", "--", "--dry-run", "--workers=2")
    assert done.stdout == "chief-0 | --dry-run --workers=2\n"


def test_flags_of_the_experiment_belong_to_the_program(phalanx: Phalanx) -> None:
    done = phalanx("run", "train.py", "--model-dir", "a", "--help", "--", "--dry-run")
    assert done.stdout == "chief-0 | --model-dir a --help -- --dry-run\n"


def test_arguments_in_the_job_file_belong_to_the_program(phalanx: Phalanx, tmp_path: Path) -> None:
    text = 'program = "train.py"\narguments = ["--workers", "3"]\n'
    (tmp_path / "phalanx.toml").write_text(text)
    done = phalanx("launch", "slurm", "--dry-run")
    assert "train.py --workers 3" in done.stdout
