"""Throughput of two trainers, relative to two processes that know nothing of each other.

Measures all-reduce and asynchronous training on a parameter server, with a small model and with
ResNet-20. The model and the batch per trainer are the same, and each trainer has one thread. CPU
time per example, of all tasks together, is what the cluster costs.
"""

import contextlib
import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from clusters import figure, run_cluster

ROUNDS = 3
STEPS = {"small": 300, "resnet20": 40}
BATCH = 64
SHAPES: dict[str, tuple[dict[str, int], int]] = {
    "one": ({"chief": 1}, 1),
    "all_reduce": ({"chief": 1, "worker": 1}, 2),
    "async": ({"chief": 1, "worker": 1, "ps": 1}, 2),
}
GOALS = {
    ("small", "all_reduce"): 0.92,
    ("small", "async"): 0.88,
    ("resnet20", "all_reduce"): 0.97,
    ("resnet20", "async"): 0.95,
}


@dataclass(frozen=True)
class Speed:
    """Examples per second, and CPU milliseconds per example."""

    examples: float
    cpu: float


def train(name: str, trainers: int) -> None:
    import keras
    import numpy as np
    import tensorflow as tf

    import phalanx
    from phalanx.models.resnet import resnet
    from phalanx.train.loop.session import Session

    tf.config.threading.set_intra_op_parallelism_threads(1)
    # One process has one thread in total; a TensorFlow server needs two to serve its peers.
    tf.config.threading.set_inter_op_parallelism_threads(1 if trainers == 1 else 2)

    def make_model() -> Any:
        model = resnet(20) if name == "resnet20" else make_small_model()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
        return model

    def make_small_model() -> Any:
        layers: list[Any] = [keras.Input((32, 32, 3))]
        for filters in (32, 64, 64):
            layers.append(keras.layers.Conv2D(filters, 3, padding="same", activation="relu"))
            layers.append(keras.layers.MaxPooling2D())
        return keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)])

    def make_data(context: phalanx.Context) -> tf.data.Dataset:
        x = np.random.default_rng(0).normal(size=(BATCH * 4, 32, 32, 3)).astype("float32")
        data = tf.data.Dataset.from_tensor_slices((x, np.zeros(len(x), "int64")))
        return data.batch(context.batch_size, drop_remainder=True).cache().repeat()

    is_async = bool(phalanx.detect().cluster.tasks(phalanx.Role.PS))
    steps = STEPS[name] * (trainers if is_async else 1)

    class Measure(phalanx.hooks.Hook):
        """Measures between two points of the run; pending steps do not count at either point."""

        start: tuple[float, float, float] | None = None
        speed: Speed | None = None

        def after_step(self, session: Session) -> None:
            if self.start is None and session.step >= steps // 5:
                self.start = (session.examples, time.perf_counter(), measure_cpu(trainers > 1))
            elif self.start is not None and not self.speed and session.step >= steps * 4 // 5:
                examples, started, cpu = self.start
                examples = session.examples - examples
                self.speed = Speed(
                    examples / (time.perf_counter() - started),
                    1000 * (measure_cpu(trainers > 1) - cpu) / examples,
                )

    hook = Measure()
    with tempfile.TemporaryDirectory() as directory:
        config = phalanx.RunConfig(
            model_dir=directory,
            train_steps=steps,
            global_batch_size=BATCH * trainers,
            log_steps=None,
            summary_steps=None,
        )
        experiment = phalanx.Experiment(model=make_model, train_data=make_data, name="scaling")
        result = phalanx.run(experiment, config, hooks=[hook])
    if result.step and hook.speed:
        print(f"SPEED {hook.speed.examples} CPU {hook.speed.cpu}", flush=True)


def measure_cpu(of_all_tasks: bool) -> float:
    """Return the CPU seconds of this process, or of all that were started with it."""
    if not of_all_tasks:
        return time.process_time()
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getppid():
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    for model in STEPS:
        speeds: dict[str, list[Speed]] = {shape: [] for shape in [*SHAPES, "independent"]}
        for number in range(ROUNDS):
            for shape, rounds in speeds.items():
                is_bound = shape == "independent"
                rounds.append(measure_independent(model) if is_bound else measure(model, shape))
                print(
                    f"{model}, round {number + 1}: {shape:11} {rounds[-1].examples:7.0f} "
                    f"examples/s, {rounds[-1].cpu:.2f} ms of CPU time per example",
                    flush=True,
                )
        bound = _median_ratio(speeds["independent"], speeds["one"])
        print(f"{model}: two independent processes: {bound:.2f} x one")
        for shape in ("all_reduce", "async"):
            ratio = _median_ratio(speeds[shape], speeds["independent"])
            cpu = statistics.median(
                ours.cpu / theirs.cpu
                for ours, theirs in zip(speeds[shape], speeds["one"], strict=True)
            )
            print(f"{model}: {shape} takes {cpu:.2f} x the CPU time per example of one process")
            goal = GOALS[model, shape]
            print(f"RESULT scaling_{shape}_{model} {ratio:.2f} x goal >= {goal}")


def _median_ratio(ours: list[Speed], theirs: list[Speed]) -> float:
    pairs = zip(ours, theirs, strict=True)
    return statistics.median(mine.examples / other.examples for mine, other in pairs)


def measure(model: str, shape: str) -> Speed:
    tasks, trainers = SHAPES[shape]
    output = run_cluster(Path(__file__), tasks, model, str(trainers), threads=1)
    return Speed(figure(output, "SPEED"), figure(output, "CPU"))


def measure_independent(model: str) -> Speed:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(partial(measure, model), ["one", "one"])
    return Speed(first.examples + second.examples, (first.cpu + second.cpu) / 2)


if __name__ == "__main__":
    if sys.argv[1:]:
        train(sys.argv[1], int(sys.argv[2]))
    else:
        main()
