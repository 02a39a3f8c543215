"""`phalanx runs`, `phalanx compare`, `phalanx board` and `phalanx evaluate`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import runpy
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.cli.in_process import invoke

from phalanx.train.model_dir.metrics_log import read_evaluations

PROGRAM = """
import keras, numpy as np, tensorflow as tf, phalanx

class Line(phalanx.Experiment):
    def model(self):
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
        return model
    def train_data(self, context):
        x = np.ones((8, 3), "float32")
        return tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(4)
    eval_data = train_data

if __name__ == "__main__":
    phalanx.run(Line(), phalanx.RunConfig(
        model_dir="runs/a", train_steps=20, save_steps=5, summary_steps=5, eval_every_steps=10))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that was trained, and two that were only described."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "train.py").write_text(PROGRAM)
    with contextlib.chdir(folder):
        runpy.run_path("train.py", run_name="__main__")
    for name, state, age in (("b", "running", 0), ("deep/c", "running", 1000), ("d", "failed", 9)):
        run = folder / "runs" / name
        (run / "eval").mkdir(parents=True)
        status = {"state": state, "step": 7, "reason": "OOM" if state == "failed" else ""}
        (run / "status.json").write_text(json.dumps({**status, "time": time.time() - age}))
        lines = [{"step": n, "time": 1.0, "loss": 9 / n, "mae": 1 / n} for n in (1, 2, 3)]
        (run / "eval/eval.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def test_runs_are_listed_with_how_they_stand() -> None:
    done = invoke("runs", "runs", "--json")
    found = {Path(row["run"]).name: row for row in map(json.loads, done.stdout.splitlines())}
    assert {name: row["state"] for name, row in found.items()} == {
        "a": "done", "b": "running", "c": "silent", "d": "failed",
    }  # fmt: skip
    assert found["a"]["step"] == 20
    assert found["a"]["loss"] > 0
    assert found["a"]["best"]["metric"] == "mae"
    assert found["b"]["best"] == {"metric": "mae", "value": pytest.approx(1 / 3), "step": 3}


def test_the_table_says_it_too() -> None:
    text = invoke("runs", "runs", "--metric", "loss").stdout
    rows = {line.split()[0]: line for line in text.splitlines()}
    assert next(iter(rows)) == "run"
    assert "loss 3 at 3" in rows["b"]
    assert "failed: OOM" in rows["d"]
    assert re.search(r"deep/c +7 .* \d+ min +silent", text)


def test_a_directory_without_runs_is_an_error(tmp_path: Path) -> None:
    done = invoke("runs", tmp_path)
    assert done.returncode == 2
    assert "there is no run in" in done.stderr


def test_curves_side_by_side_in_the_terminal_and_as_a_picture() -> None:
    done = invoke("compare", "runs/a", "runs/b", "--out", "curves.png")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "loss"
    assert re.search(r"b eval +[▁-█]{3} +9 to 3 at step 3", done.stdout)
    assert re.search(r"a train .* at step 20", done.stdout)
    assert Path("curves.png").read_bytes().startswith(b"\x89PNG")


def test_runs_of_one_name_and_numbers_that_are_none_are_told_apart(tmp_path: Path) -> None:
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
        (["runs/a", "--metric", "f1"], "no run has f1: there are"),
        (["runs/a", "--out", "x.gif"], "must end with .png"),
        (["runs/a", "--out", "none/x.png"], "--out none/x.png cannot be written: No such file"),
        (["runs"], "has no curves"),
    ],
)
def test_what_cannot_be_compared_is_said(arguments: list[str], reason: str) -> None:
    done = invoke("compare", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert reason in done.stderr


def test_evaluate_follows_a_run_that_is_done_to_its_end() -> None:
    before = [found.step for found in read_evaluations("runs/a")]
    assert before == [10, 20]
    done = invoke("evaluate", "train.py")
    # Those that the run itself evaluated, just before they were saved, may come again.
    steps = [json.loads(line)["step"] for line in done.stdout.splitlines()]
    assert {0, 5, 15} <= set(steps) <= {0, 5, 10, 15, 20}
    assert [found.step for found in read_evaluations("runs/a")] == [0, 5, 10, 15, 20]
    assert invoke("evaluate", "train.py").stdout == ""


def test_evaluate_once_takes_the_checkpoint_that_is_asked_for() -> None:
    for which, step in (("last", 20), ("5", 5), ("best", 20)):
        done = invoke("evaluate", "train.py", "--once", "--checkpoint", which)
        assert json.loads(done.stdout)["step"] == step, which


def test_board_opens_tensorboard_on_all_runs(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", "board", "runs", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
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


def test_board_wants_something_to_show(tmp_path: Path) -> None:
    done = invoke("board", tmp_path)
    assert done.returncode == 2
    assert "no event files" in done.stderr
