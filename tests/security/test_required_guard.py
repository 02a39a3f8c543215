"""With PHALANX_GUARD=required, nothing opens a server of TensorFlow without the guard."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("tensorflow", reason="needs phalanx[cpu]")

KERAS = """
import keras, numpy as np, tensorflow as tf
import phalanx
def build():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model
"""
RUN = (
    KERAS
    + """
class Line(phalanx.Experiment):
    def model(self):
        return build()
    def train_data(self, context):
        return tf.data.Dataset.from_tensors((tf.ones([4, 2]), tf.ones([4, 1]))).repeat()
phalanx.run(Line(), phalanx.RunConfig(model_dir="model", train_steps=1))
"""
)
FIT = KERAS + "phalanx.fit(build(), np.ones((8, 2)), np.ones((8, 1)), batch_size=4)\n"
CUSTOM_LOOP = """
import tensorflow as tf
import phalanx
spec = phalanx.TaskSpec()
with phalanx.DistributedSession(spec, "model") as session:
    pass
"""
GRAPH = """
import tensorflow as tf
import phalanx
tf.compat.v1.disable_eager_execution()
phalanx.TaskSpec().create_server()
"""
ESTIMATOR = """
import tensorflow as tf
def model_fn(features, labels, mode):
    loss = tf.reduce_mean((features["x"] - tf.get_variable("w", [])) ** 2)
    step = tf.train.get_global_step()
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=tf.train.GradientDescentOptimizer(0.1).minimize(loss, step))
def data():
    return tf.data.Dataset.from_tensors(({"x": [1.0]}, [1.0])).repeat()
tf.estimator.train_and_evaluate(
    tf.estimator.Estimator(model_fn, "model"),
    tf.estimator.TrainSpec(data, 5), tf.estimator.EvalSpec(data, 1))
"""
PS = {"chief": 1, "worker": 1, "ps": 1}
WORKERS = {"worker": 2}


def start(
    tmp_path: Path, command: list[str], cluster: dict[str, int], role: str, guard: str
) -> subprocess.CompletedProcess[str]:
    # No task gets as far as binding its port.
    ports = count(4000)
    addresses = {
        each: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for each, n in cluster.items()
    }
    config = json.dumps({"cluster": addresses, "task": {"type": role, "index": 0}})
    environ = {**os.environ, "TF_CONFIG": config, "PHALANX_GUARD": guard}
    return subprocess.run(
        [sys.executable, *command],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("program", "cluster", "role"),
    [
        pytest.param(RUN, WORKERS, "worker", id="run"),
        pytest.param(RUN, PS, "ps", id="ps", marks=pytest.mark.slow),
        pytest.param(RUN, PS, "chief", id="chief", marks=pytest.mark.slow),
        pytest.param(FIT, WORKERS, "worker", id="fit", marks=pytest.mark.slow),
        pytest.param(CUSTOM_LOOP, WORKERS, "worker", id="loop", marks=pytest.mark.slow),
        pytest.param(GRAPH, PS, "chief", id="graph", marks=pytest.mark.slow),
        pytest.param(GRAPH, PS, "ps", id="graph ps", marks=pytest.mark.slow),
    ],
)
def test_task_that_is_started_by_hand_is_refused(
    program: str, cluster: dict[str, int], role: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(program)
    done = start(tmp_path, ["train.py"], cluster, role, "required")
    assert done.returncode == 2, done.stderr
    assert "phalanx: PHALANX_GUARD is required, and the guard is not active" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("role", ["chief", "ps"])
def test_estimator_that_is_started_by_hand_is_refused(role: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ESTIMATOR)
    command = ["-m", "phalanx.compat.tf1", "train.py"]
    done = start(tmp_path, command, PS, role, "required")
    assert done.returncode == 2, done.stderr
    assert "phalanx: PHALANX_GUARD is required, and the guard is not active" in done.stderr


@pytest.mark.parametrize("server", [("dispatcher",), ("worker", "127.0.0.1:1")])
def test_data_service_that_is_started_by_hand_is_refused(
    server: tuple[str, ...], tmp_path: Path
) -> None:
    command = ["-m", "phalanx", "data-service", *server]
    done = start(tmp_path, command, WORKERS, "worker", "required")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("phalanx: PHALANX_GUARD is required, and the guard is not active")
