"""The speed of an Estimator under --tf1, relative to a bare MonitoredTrainingSession loop.

python benchmarks/tf1.py

Both train the ResNet-20 of examples/tf1/towers.py on the same images in memory, in rounds of which
either is first in turn. Building the graph and the first steps do not count. The figure compares
the CPU time of a step, which other work on the machine disturbs less than the elapsed time.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

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


class Step(NamedTuple):
    """The CPU time and the elapsed time of a step, in seconds."""

    cpu: float
    elapsed: float


class Timer(tf.train.SessionRunHook):  # type: ignore[misc]
    """Measures the steps after the warm-up."""

    def begin(self) -> None:
        self.runs = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.runs += 1
        now = np.array([time.process_time(), time.perf_counter()])
        if self.runs == WARM_UP:
            self.started = now
        if self.runs == WARM_UP + STEPS:
            self.step = Step(*(now - self.started) / STEPS)
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


def run_estimator(directory: str) -> Step:
    timer = Timer()
    tf.estimator.Estimator(model_fn, directory).train(input_fn, hooks=[timer])
    return timer.step


def run_bare_loop(directory: str) -> Step:
    timer = Timer()
    with tf.Graph().as_default():
        images, labels = tf.data.make_one_shot_iterator(input_fn()).get_next()
        loss, train = make_step(images, labels)
        with tf.train.MonitoredTrainingSession(checkpoint_dir=directory, hooks=[timer]) as session:
            while not session.should_stop():
                session.run([train, loss])
    return timer.step


def main() -> None:
    ratios = []
    for number in range(ROUNDS):
        contestants = [run_bare_loop, run_estimator]
        steps: dict[str, Step] = {}
        with tempfile.TemporaryDirectory() as directory:
            for run in contestants[:: -1 if number % 2 else 1]:
                steps[run.__name__] = run(f"{directory}/{run.__name__}")
        bare, estimator = (steps[run.__name__] for run in contestants)
        ratios.append(Step(bare.cpu / estimator.cpu, bare.elapsed / estimator.elapsed))
        print(
            f"round {number + 1}: Estimator {1000 * estimator.cpu:.0f} ms of CPU time and "
            f"{1000 * estimator.elapsed:.0f} ms in a step, bare loop {1000 * bare.cpu:.0f} ms and "
            f"{1000 * bare.elapsed:.0f} ms",
            flush=True,
        )
    print(f"elapsed time: {statistics.median(each.elapsed for each in ratios):.2f} x")
    ratio = statistics.median(each.cpu for each in ratios)
    print(f"RESULT tf1_estimator_over_bare_loop {ratio:.2f} x goal >= 0.9")


if __name__ == "__main__":
    main()
