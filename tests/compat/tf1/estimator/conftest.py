"""A linear regression as an Estimator, on a few points."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.estimator import Estimator, EstimatorSpec, ModeKeys, RunConfig, export
from phalanx.compat.tf1.estimator.inputs import numpy_input_fn

POINTS = np.random.RandomState(0).randn(200, 3).astype(np.float32)
VALUES = (POINTS @ np.array([1, -2, 3], np.float32) + 0.5)[:, None]


@pytest.fixture(autouse=True)
def single_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    yield
    tf.summary.FileWriterCache.clear()


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
    with tf.variable_scope("linear"):
        weights = tf.get_variable("weights", [3, 1], initializer=tf.zeros_initializer())
        bias = tf.get_variable("bias", [], initializer=tf.zeros_initializer())
    outputs = tf.matmul(features["x"], weights) + bias
    if mode == ModeKeys.PREDICT:
        return EstimatorSpec(
            mode,
            predictions={"y": outputs, "twice": 2 * outputs},
            export_outputs={"serving_default": export.PredictOutput({"y": outputs})},
        )
    loss = tf.losses.mean_squared_error(labels, outputs)
    optimizer = tf.train.GradientDescentOptimizer(params["rate"])
    return EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, tf.train.get_global_step()),
        eval_metric_ops={"error": tf.metrics.mean_absolute_error(labels, outputs)},
    )


@pytest.fixture
def train_input() -> Callable[[], Any]:
    return numpy_input_fn({"x": POINTS}, VALUES, batch_size=50, num_epochs=None, shuffle=True)


@pytest.fixture
def eval_input() -> Callable[[], Any]:
    return numpy_input_fn({"x": POINTS}, VALUES, batch_size=64, shuffle=False)


@pytest.fixture
def make_estimator(tmp_path: Path) -> Callable[..., Estimator]:
    def make(rate: float = 0.2, directory: str = "model", **settings: Any) -> Estimator:
        config = RunConfig(save_checkpoints_steps=20, tf_random_seed=1)
        params = {"rate": rate}
        return Estimator(model_fn, tmp_path / directory, config, params, **settings)

    return make
