"""`phalanx runs`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.cli.in_process import invoke


@pytest.fixture(autouse=True)
def chdir_to_runs(runs_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs_folder)


def test_runs_are_listed_with_state_step_and_best_metric() -> None:
    done = invoke("runs", "runs", "--json")
    found = {Path(row["run"]).name: row for row in map(json.loads, done.stdout.splitlines())}
    assert {name: row["state"] for name, row in found.items()} == {
        "a": "done", "b": "running", "c": "silent", "d": "failed",
    }  # fmt: skip
    assert found["a"]["step"] == 20
    assert found["a"]["loss"] > 0
    assert found["a"]["best"]["metric"] == "mae"
    assert found["b"]["best"] == {"metric": "mae", "value": pytest.approx(1 / 3), "step": 3}


def test_table_shows_best_metric_age_and_failure() -> None:
    text = invoke("runs", "runs", "--metric", "loss").stdout
    rows = {line.split()[0]: line for line in text.splitlines()}
    assert next(iter(rows)) == "run"
    assert "loss 3 at 3" in rows["b"]
    assert "failed: OOM" in rows["d"]
    assert re.search(r"deep/c +7 .* \d+ min +silent", text)


def test_directory_without_runs_is_an_error(tmp_path: Path) -> None:
    done = invoke("runs", tmp_path)
    assert done.returncode == 2
    assert "there is no run in" in done.stderr
