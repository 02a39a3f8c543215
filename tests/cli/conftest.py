"""A trained program and its runs, for the commands that read them."""

from __future__ import annotations

import contextlib
import json
import runpy
import time
from pathlib import Path

import pytest
from tests.cli.in_process import invoke

PROGRAM = '''
import sys
import keras, numpy as np, tensorflow as tf, phalanx

class Sum(phalanx.Experiment):
    """Its only layer is initialized to add up three numbers, and its learning rate is 0."""
    def model(self):
        model = keras.Sequential([
            keras.Input((3,), name="x"),
            keras.layers.Dense(1, kernel_initializer="ones", name="sum"),
        ])
        model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
        return model
    def train_data(self, context):
        x = np.ones((8, 3), "float32")
        return tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(4)
    eval_data = train_data

if __name__ == "__main__":
    phalanx.run(Sum(), phalanx.RunConfig(model_dir="run", train_steps=2))
'''

RUNS_PROGRAM = """
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


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.py and its run."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "train.py").write_text(PROGRAM)
    with contextlib.chdir(folder):
        runpy.run_path("train.py", run_name="__main__")
    return folder


@pytest.fixture(scope="session")
def exported(trained: Path) -> Path:
    """The directory of the exported model of that run."""
    with contextlib.chdir(trained):
        done = invoke("export", "train.py", "--out", "models/sum")
    assert done.stdout == "models/sum/1\n"
    return trained / "models/sum"


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.py, its run runs/a, and three runs that consist only of their logs."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "train.py").write_text(RUNS_PROGRAM)
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
