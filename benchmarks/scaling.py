"""Throughput of two all-reduce workers and of asynchronous training, relative to one process.

The model and the batch per trainer are the same, and each trainer has one thread. As the upper
bound for two cores, the benchmark also measures two independent processes at the same time.
"""

import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from clusters import figure, run_cluster

ROUNDS = 3
STEPS = 300
BATCH = 64
SHAPES: dict[str, tuple[dict[str, int], int]] = {
    "one": ({"chief": 1}, 1),
    "in_step": ({"chief": 1, "worker": 1}, 2),
    "async": ({"chief": 1, "worker": 1, "ps": 1}, 2),
}


def train(trainers: int) -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    import phalanx
    from phalanx.train.loop.session import Session

    tf.config.threading.set_intra_op_parallelism_threads(1)
    # One process has one thread in total; a TensorFlow server needs two to serve its peers.
    tf.config.threading.set_inter_op_parallelism_threads(1 if trainers == 1 else 2)

    def make_model() -> Any:
        layers: list[Any] = [keras.Input((32, 32, 3))]
        for filters in (32, 64, 64):
            layers.append(keras.layers.Conv2D(filters, 3, padding="same", activation="relu"))
            layers.append(keras.layers.MaxPooling2D())
        model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
        return model

    def make_data(context: phalanx.Context) -> tf.data.Dataset:
        x = np.random.default_rng(0).normal(size=(BATCH * 4, 32, 32, 3)).astype("float32")
        data = tf.data.Dataset.from_tensor_slices((x, np.zeros(len(x), "int64")))
        return data.batch(context.batch_size, drop_remainder=True).cache().repeat()

    is_async = bool(phalanx.detect().cluster.tasks(phalanx.Role.PS))
    steps = STEPS * (trainers if is_async else 1)

    class Speed(phalanx.hooks.Hook):
        """Measures between two points of the run; pending steps do not count at either point."""

        start: tuple[float, float] | None = None
        figure = 0.0

        def after_step(self, session: Session) -> None:
            now = time.perf_counter()
            if self.start is None and session.step >= steps // 5:
                self.start = (session.examples, now)
            elif self.start is not None and not self.figure and session.step >= steps * 4 // 5:
                self.figure = (session.examples - self.start[0]) / (now - self.start[1])

    speed = Speed()
    with tempfile.TemporaryDirectory() as directory:
        config = phalanx.RunConfig(
            model_dir=directory,
            train_steps=steps,
            global_batch_size=BATCH * trainers,
            log_steps=None,
            summary_steps=None,
        )
        experiment = phalanx.Experiment(model=make_model, train_data=make_data, name="scaling")
        result = phalanx.run(experiment, config, hooks=[speed])
    if result.step:
        print(f"SPEED {speed.figure}", flush=True)


def main() -> None:
    speeds: dict[str, list[float]] = {name: [] for name in [*SHAPES, "independent"]}
    for number in range(ROUNDS):
        for name, rounds in speeds.items():
            is_bound = name == "independent"
            rounds.append(measure_independent() if is_bound else measure(name))
            print(f"round {number + 1}: {name:11} {rounds[-1]:7.0f} examples/s", flush=True)
    ratios = {
        name: statistics.median(s / one for s, one in zip(rounds, speeds["one"], strict=True))
        for name, rounds in speeds.items()
    }
    print(f"two independent processes: {ratios['independent']:.2f} x one")
    for name, goal in (("in_step", 1.85), ("async", 1.7)):
        print(f"RESULT scaling_{name} {ratios[name]:.2f} x goal >= {goal}")


def measure(name: str) -> float:
    shape, trainers = SHAPES[name]
    return figure(run_cluster(Path(__file__), shape, str(trainers), threads=1), "SPEED")


def measure_independent() -> float:
    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(measure, ["one", "one"]))


if __name__ == "__main__":
    if sys.argv[1:]:
        train(int(sys.argv[1]))
    else:
        main()
