"""CPU time of a step, relative to a bare `tf.function` loop and to Keras' `fit`.

One process and a tiny model, so that overhead dominates. The contestants take turns for several
rounds; the figure is the median of the ratios.

Then `phalanx.fit` and `model.fit` train a new tiny and a new medium model in each round, in wall
and CPU time, with all that is traced.
"""

import os
import statistics
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx.train.loop.session import Session

STEPS = 2000
ROUNDS = 5
BATCH = 32


def make_model() -> keras.Model:
    layers = [keras.layers.Dense(32, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return model


def make_data() -> tf.data.Dataset:
    random = np.random.default_rng(0)
    x = random.normal(size=(BATCH * 200, 16)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).cache().repeat().prefetch(8)


def train_bare() -> Any:
    model, data = make_model(), iter(make_data())
    optimizer = model.optimizer
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    def run() -> None:
        for _ in range(STEPS):
            step(*next(data))

    return run


def train_with_fit() -> Any:
    model, data = make_model(), make_data()
    return lambda: model.fit(data, steps_per_epoch=STEPS, epochs=1, verbose=0)


class Rounds(phalanx.hooks.Hook):
    """Measures blocks of STEPS steps, and runs the other contestants in between."""

    def __init__(self, others: dict[str, Any]) -> None:
        self.others = others
        self.seconds: dict[str, list[float]] = {name: [] for name in ("phalanx", *others)}
        self.started: float | None = None

    def due(self, step: int) -> int:
        return (step // STEPS + 1) * STEPS

    def after_step(self, session: Session) -> None:
        if session.step % STEPS:
            return
        if self.started is not None:
            self.seconds["phalanx"].append(time.process_time() - self.started)
            for name, run in self.others.items():
                started = time.process_time()
                run()
                self.seconds[name].append(time.process_time() - started)
        self.started = time.process_time()


def make_medium_model() -> keras.Model:
    layers = [keras.Input((32, 32, 3))]
    for filters in (16, 32, 64):
        layers += [
            keras.layers.Conv2D(filters, 3, padding="same", use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.MaxPooling2D(),
        ]
    model = keras.Sequential([*layers, keras.layers.Flatten(), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    return model


def compare_fit(name: str, make: Any, x: Any, y: Any, epochs: int) -> None:
    """Print the time of `phalanx.fit`, relative to `model.fit`."""
    wall, cpu = [], []
    for _ in range(ROUNDS):
        times = []
        for fit in (phalanx.fit, keras.Model.fit):
            started = time.perf_counter(), time.process_time()
            fit(make(), x, y, batch_size=BATCH, epochs=epochs, verbose=0)
            times.append((time.perf_counter() - started[0], time.process_time() - started[1]))
        wall.append(times[0][0] / times[1][0])
        cpu.append(times[0][1] / times[1][1])
    print(f"RESULT fit_{name}_wall_vs_keras {statistics.median(wall):.3f} x goal <= 1.0")
    print(f"RESULT fit_{name}_cpu_vs_keras {statistics.median(cpu):.3f} x goal <= 1.0")


def compare_fits() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(BATCH * 500, 16)).astype("float32")
    compare_fit("tiny", make_model, x, x.sum(axis=1, keepdims=True), epochs=5)
    images = random.normal(size=(BATCH * 40, 32, 32, 3)).astype("float32")
    compare_fit("medium", make_medium_model, images, np.arange(len(images)) % 10, epochs=3)


def main() -> None:
    others = {"bare": train_bare(), "fit": train_with_fit()}
    for run in others.values():
        run()
    rounds = Rounds(others)
    experiment = phalanx.Experiment(
        model=make_model, train_data=lambda context: make_data(), name="overhead"
    )
    with tempfile.TemporaryDirectory() as directory:
        config = phalanx.RunConfig(
            model_dir=directory,
            train_steps=STEPS * (ROUNDS + 1),
            global_batch_size=BATCH,
            log_steps=STEPS,
        )
        phalanx.run(experiment, config, hooks=[rounds])
    for name, seconds in rounds.seconds.items():
        print(f"{name:7} {statistics.median(seconds) / STEPS * 1e6:8.1f} us of CPU time per step")
    for name, goal in (("bare", 1.05), ("fit", 1.0)):
        pairs = zip(rounds.seconds["phalanx"], rounds.seconds[name], strict=True)
        ratio = statistics.median(step / other for step, other in pairs)
        print(f"RESULT overhead_vs_{name} {ratio:.3f} x goal <= {goal}")
    compare_fits()


if __name__ == "__main__":
    main()
