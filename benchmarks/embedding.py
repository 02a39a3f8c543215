"""The speed of a growing table, compared with a table of fixed size.

Both have a million rows and are trained in one process, on the same heavy-tailed ids: looked up,
updated by Adagrad, and in the growing table counted and admitted. Rounds of both alternate.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables

ROWS, WIDTH, BATCH, FEATURES = 1_000_000, 32, 1024, 26
BATCHES, ROUNDS = 10, 7


def make_batches(seed: int) -> list[Any]:
    """Return batches of ids, most of which are rare, and labels."""
    random = np.random.default_rng(seed)
    batches = []
    for _ in range(BATCHES):
        ids = (random.pareto(0.6, (BATCH, FEATURES)) * 1000).clip(0, 1e15).astype(np.int64)
        labels = (ids[:, :1] % 2).astype("float32")
        batches.append((tf.constant(ids), tf.constant(labels)))
    return batches


def make_training(layer: Callable[[], Any]) -> Callable[[Any], None]:
    """Return a function that trains a model on one batch."""

    def make_model() -> Any:
        ids = keras.Input((FEATURES,), dtype="int64")
        vectors = keras.layers.Flatten()(layer()(ids))
        model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Dense(16)(vectors)))
        model.compile(keras.optimizers.Adagrad(0.01), "mse")
        return model

    step = StepFunction(phalanx.Experiment(model=make_model), phalanx.Context(batch_size=BATCH))
    spec = tf.data.Dataset.from_tensors(make_batches(0)[0]).element_spec
    step.build(spec)
    host_variables = step.make_host_variables()
    variables = DeviceVariables.place(host_variables, ["/device:CPU:0"], Clipping())
    variables.push()

    @tf.function(input_signature=[spec])  # type: ignore[untyped-decorator]
    def train(batch: Any) -> None:
        result = step.train(variables, variables.read(), variables.read_state(), batch, 0, 0)
        variables.apply(result.gradients)
        variables.write_changing_state(result.state)
        variables.grow(result.sightings)

    return train


def main() -> None:
    layers = phalanx.layers
    trainings = {
        "fixed": make_training(lambda: layers.Embedding(ROWS, WIDTH, hash_inputs=True)),
        "growing": make_training(lambda: layers.DynamicEmbedding(WIDTH, ROWS)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in trainings}
    for number in range(ROUNDS + 1):
        batches = make_batches(number)
        for name, train in trainings.items():
            started = time.perf_counter()
            for batch in batches:
                train(batch)
            # The first round traces, and fills what was empty.
            if number:
                seconds[name].append((time.perf_counter() - started) / BATCHES)
    for name, taken in seconds.items():
        print(f"{name}: {1000 * statistics.median(taken):.1f} ms per step of {BATCH} examples")
    ratio = statistics.median(
        fixed / growing for fixed, growing in zip(seconds["fixed"], seconds["growing"], strict=True)
    )
    print(f"RESULT growing_table_speed {ratio:.3f} of the fixed table's goal >= 0.5")


if __name__ == "__main__":
    main()
