"""The speed of an Estimator under --tf1, relative to a bare MonitoredTrainingSession loop.

python benchmarks/tf1.py

Both train the ResNet-20 of examples/tf1/towers.py on the same images in memory, in alternating
rounds. Building the graph and the first steps do not count. The figure is the CPU time of a step.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np

from phalanx.compat.tf1.imports import install

tf: Any = install()

ROOT = Path(__file__).parents[1]
ROUNDS = 5
WARM_UP = 5
STEPS = 25
BATCH = 64


def load_program() -> Any:
    spec = importlib.util.spec_from_file_location("towers", ROOT / "examples/tf1/towers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOWERS = load_program()


class Timer(tf.train.SessionRunHook):  # type: ignore[misc]
    """Measures the steps after the warm-up."""

    def begin(self) -> None:
        self.runs = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.runs += 1
        now = time.process_time()
        if self.runs == WARM_UP:
            self.started = now
        self.seconds = now - getattr(self, "started", now)
        if self.runs == WARM_UP + STEPS:
            run_context.request_stop()


def input_fn() -> Any:
    random = np.random.RandomState(1)
    images = random.randn(BATCH, 32, 32, 3).astype(np.float32)
    labels = random.randint(0, 10, BATCH).astype(np.int32)
    return tf.data.Dataset.from_tensors((images, labels)).cache().repeat()


def make_step(images: Any, labels: Any) -> tuple[Any, Any]:
    logits = TOWERS.ResNet(20, True)(images)
    loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)
    step = tf.train.get_or_create_global_step()
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train = tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss, global_step=step)
    return loss, train


def model_fn(features: Any, labels: Any, mode: str) -> Any:
    loss, train = make_step(features, labels)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train)


def run_estimator(directory: str) -> float:
    timer = Timer()
    tf.estimator.Estimator(model_fn, directory).train(input_fn, hooks=[timer])
    return timer.seconds


def run_bare_loop(directory: str) -> float:
    timer = Timer()
    with tf.Graph().as_default():
        images, labels = tf.data.make_one_shot_iterator(input_fn()).get_next()
        loss, train = make_step(images, labels)
        with tf.train.MonitoredTrainingSession(checkpoint_dir=directory, hooks=[timer]) as session:
            while not session.should_stop():
                session.run([train, loss])
    return timer.seconds


def main() -> None:
    ratios = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as directory:
            bare = run_bare_loop(f"{directory}/bare")
            estimator = run_estimator(f"{directory}/estimator")
        ratios.append(bare / estimator)
        milliseconds = [1000 * each / STEPS for each in (estimator, bare)]
        print(
            "Estimator {:.0f} ms, bare loop {:.0f} ms of CPU time in a step".format(*milliseconds)
        )
    print(f"RESULT tf1_estimator_over_bare_loop {statistics.median(ratios):.2f} x goal >= 0.9")


if __name__ == "__main__":
    main()
