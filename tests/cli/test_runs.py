"""`phalanx runs`, `phalanx compare` and `phalanx board`."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.cli.in_process import invoke


@pytest.fixture(autouse=True)
def chdir_to_runs(runs_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs_folder)
    # The folder is made once for all tests: renew the heartbeat of the run that still runs.
    path = runs_folder / "runs/b/status.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "time": time.time()}))


def test_runs_are_listed_with_state_step_and_best_metric() -> None:
    # Other tests may have used the folder for longer than a run may be silent.
    status = Path("runs/b/status.json")
    status.write_text(json.dumps({**json.loads(status.read_text()), "time": time.time()}))
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


def test_curves_are_drawn_in_the_terminal_and_plotted_to_a_file() -> None:
    done = invoke("compare", "runs/a", "runs/b", "--out", "curves.png")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "loss"
    assert re.search(r"b eval +[▁-█]{3} +9 to 3 at step 3", done.stdout)
    assert re.search(r"a train .* at step 20", done.stdout)
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_the_same_name_are_labelled_by_path_and_nan_is_drawn(tmp_path: Path) -> None:
    for folder, loss in (("x", "1.0"), ("y", "null")):
        (tmp_path / folder / "run").mkdir(parents=True)
        line = f'{{"step": 1, "time": 1.0, "loss": {loss}}}\n'
        (tmp_path / folder / "run/train.jsonl").write_text(line)
    done = invoke("compare", tmp_path / "x/run", tmp_path / "y/run")
    assert re.search(r"x/run train +▁ ", done.stdout)
    assert re.search(r"y/run train +\? +nan to nan", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["runs/a", "--metric", "f1"], "no run has f1: the metrics are"),
        (["runs/a", "--out", "x.gif"], "must end with .png"),
        (["runs/a", "--out", "none/x.png"], "--out none/x.png cannot be written: No such file"),
        (["runs"], "has no curves"),
    ],
)
def test_wrong_use_of_compare_is_reported(arguments: list[str], reason: str) -> None:
    done = invoke("compare", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert reason in done.stderr


def test_board_shows_all_runs_in_tensorboard(runs_folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "board", "runs", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=runs_folder,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    try:
        assert process.stdout is not None
        port = next(m[1] for line in process.stdout if (m := re.search(r":(\d+)/", line)))
        runs: Any = []
        deadline = time.monotonic() + 200
        while not runs and time.monotonic() < deadline:
            address = f"http://localhost:{port}/data/runs"
            with urllib.request.urlopen(address, timeout=200) as answer:
                runs = json.loads(answer.read())
            time.sleep(0.3)
        assert "a" in runs
    finally:
        process.terminate()
        process.wait(200)


def test_board_without_event_files_is_an_error(tmp_path: Path) -> None:
    done = invoke("board", tmp_path)
    assert done.returncode == 2
    assert "no event files" in done.stderr
