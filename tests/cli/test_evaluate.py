"""`phalanx evaluate`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.cli.in_process import invoke

from phalanx.train.model_dir.metrics_log import read_evaluations


@pytest.fixture(autouse=True)
def chdir_to_copy(runs_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations are written into the run: each test has its own copy."""
    shutil.copytree(runs_folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def test_evaluate_evaluates_every_checkpoint_of_a_finished_run() -> None:
    before = [found.step for found in read_evaluations("runs/a")]
    assert before == [10, 20]
    done = invoke("evaluate", "train.py")
    # Checkpoints that the run evaluated just before it saved them may be evaluated again.
    steps = [json.loads(line)["step"] for line in done.stdout.splitlines()]
    assert {0, 5, 15} <= set(steps) <= {0, 5, 10, 15, 20}
    assert [found.step for found in read_evaluations("runs/a")] == [0, 5, 10, 15, 20]
    assert invoke("evaluate", "train.py").stdout == ""


def test_evaluate_once_evaluates_the_chosen_checkpoint() -> None:
    for which, step in (("last", 20), ("5", 5), ("best", 20)):
        done = invoke("evaluate", "train.py", "--once", "--checkpoint", which)
        assert json.loads(done.stdout)["step"] == step, which
