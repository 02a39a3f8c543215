"""A stream of 10 million ids through a growing table of a million rows.

Most ids are seen once. Some are seen often, and only the row of such an id can know its label. The
growing table is compared with a hashed table of as many rows, where every frequent id shares its
row with about ten others. Memory is measured after a tenth of the stream, and at its end. Takes
about a gigabyte of memory, and some minutes; BENCH_IDS sets another number of ids.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables

IDS = int(os.environ.get("BENCH_IDS", "10_000_000"))
ROWS, WIDTH, BATCH = IDS // 10, 8, 16_384
FREQUENT = ROWS // 2
SPEC = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 1]))


def make_batch(number: int) -> tuple[Any, Any]:
    """Return ids, half of which have not been seen before, and labels that depend on the ids."""
    random = np.random.default_rng(number)
    new = 10**12 + np.arange(BATCH // 2) + number * (BATCH // 2)
    known = random.integers(0, FREQUENT, BATCH - BATCH // 2) * 7919
    ids = random.permutation(np.concatenate([new, known]))
    # An id that is seen once says nothing about its label.
    is_frequent = ids < 10**12
    chance = np.where(is_frequent, np.where(np.sin(ids) > 0, 0.9, 0.1), 0.5)
    labels = (random.uniform(size=BATCH) < chance).astype("float32")
    return ids.astype(np.int64), labels[:, None]


def train(layer: Callable[[], Any]) -> tuple[float, float, Any]:
    """Train on the stream; return the AUC, the growth of memory in bytes, and the model."""

    def make_model() -> Any:
        ids = keras.Input((), dtype="int64")
        score = keras.layers.Dense(1, activation="sigmoid")(layer()(ids))
        model = keras.Model(ids, score)
        model.compile(keras.optimizers.Adam(0.05), "binary_crossentropy")
        return model

    step = StepFunction(phalanx.Experiment(model=make_model), phalanx.Context(batch_size=BATCH))
    step.build(SPEC)
    variables = DeviceVariables.place(step.make_host_variables(), ["/device:CPU:0"], Clipping())
    variables.push()

    @tf.function(input_signature=[SPEC])  # type: ignore[untyped-decorator]
    def update(batch: Any) -> None:
        result = step.train(variables, variables.read(), variables.read_state(), batch, 0, 0)
        variables.apply(result.gradients)
        variables.grow(result.sightings)

    steps = 2 * IDS // BATCH
    early = 0
    for number in range(steps):
        update(tuple(map(tf.constant, make_batch(number))))
        if number == steps // 10:
            early = _read_memory()
    grown = _read_memory() - early
    variables.pull()
    metric = keras.metrics.AUC()
    for number in range(steps, steps + 20):
        ids, labels = make_batch(number)
        metric.update_state(labels, step.model(tf.constant(ids)))
    return float(metric.result()), grown, step.model


def main() -> None:
    results = {}
    layers = phalanx.layers
    for name, layer in {
        "hashed": lambda: layers.Embedding(ROWS, WIDTH, hash_inputs=True),
        "growing": lambda: layers.DynamicEmbedding(
            WIDTH, ROWS, min_count=2, evict="rarest", name="grown"
        ),
    }.items():
        started = time.perf_counter()
        auc, grown, model = train(layer)
        results[name] = auc, grown
        print(f"{name}: AUC {auc:.4f}, memory +{grown / 1e6:.0f} MB, "
              f"{time.perf_counter() - started:.0f} s")  # fmt: skip
    print(f"growing: {model.get_layer('grown').statistics()}, budget {ROWS} rows")
    print(f"RESULT growing_table_memory {results['growing'][1] / 1e6:.0f} MB more goal <= 100")
    ratio = results["growing"][0] / results["hashed"][0]
    print(f"RESULT growing_table_auc {ratio:.3f} of the hashed table's goal >= 1")


def _read_memory() -> int:
    """Return the bytes of memory that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
