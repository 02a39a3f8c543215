"""The speed of tables of embeddings: a DLRM beside plain Keras, large tables, and growing ones.

- A DLRM in one process, with `phalanx.fit`, and with Keras' `fit` and `keras.layers.Embedding`, by
  CPU time. Its 8 tables have a million rows each; BENCH_ROWS sets another size.
- The same DLRM with smaller tables on 1 ps and 2 workers, beside the plain way, by wall time: a
  ClusterCoordinator, and `keras.layers.Embedding` inside of a ParameterServerStrategy.
- A step on a table of 10^5 rows and on one of 3 * 10^7, with the same number of different ids.
- A step on a growing table and on a fixed one, of a million rows each, on heavy-tailed ids.

All run in turns, for several rounds. Adagrad is the optimizer.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from clusters import figure, run_cluster

ROWS = int(os.environ.get("BENCH_ROWS", "1_000_000"))
PS_ROWS = ROWS // 10
FIELDS, NUMBERS, WIDTH, BATCH = 8, 13, 16, 1024
LARGE_ROWS, SMALL_ROWS = 30 * ROWS, ROWS // 10
BATCHES, ROUNDS = 10, 7
SHAPE = {"chief": 1, "worker": 2, "ps": 1}
CLUSTER_STEPS = {"phalanx": (40, 240), "plain": (4, 16)}


def make_dlrm(embedding: Callable[[int, int], Any], rows: int) -> Any:
    """Build a DLRM: a table for each field, and the dot products of their vectors."""
    import keras

    numbers = keras.Input((NUMBERS,))
    fields = keras.Input((FIELDS,), dtype="int64")
    dense = keras.layers.Dense(WIDTH, activation="relu")(
        keras.layers.Dense(64, activation="relu")(numbers)
    )
    vectors = [dense] + [embedding(rows, WIDTH)(fields[:, i]) for i in range(FIELDS)]
    joined = keras.ops.stack(vectors, axis=1)
    products = keras.ops.matmul(joined, keras.ops.transpose(joined, (0, 2, 1)))
    flat = keras.layers.Flatten()(products)
    top = keras.layers.Dense(64, activation="relu")(keras.layers.Concatenate()([dense, flat]))
    model = keras.Model([numbers, fields], keras.layers.Dense(1)(top))
    model.compile(keras.optimizers.Adagrad(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def make_clicks(batches: int, rows: int) -> tuple[list[Any], Any]:
    """Return numbers, heavy-tailed ids and labels."""
    import numpy as np

    random = np.random.default_rng(0)
    count = batches * BATCH
    ids = (rows ** random.uniform(size=(count, FIELDS))).astype("int64") % rows
    numbers = random.normal(size=(count, NUMBERS)).astype("float32")
    return [numbers, ids], (ids[:, :1] % 2).astype("float32")


def fit_one_process(name: str) -> None:
    """Print the CPU time of an epoch after the first one."""
    import keras

    import phalanx

    layer = keras.layers.Embedding if name == "keras" else phalanx.layers.Embedding
    model = make_dlrm(layer, ROWS)
    x, y = make_clicks(BATCHES, ROWS)
    taken: list[float] = []

    class Timer(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.started = time.process_time()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            taken.append(time.process_time() - self.started)

    settings = {"batch_size": BATCH, "epochs": 4, "verbose": 0, "callbacks": [Timer()]}
    if name == "keras":
        model.fit(x, y, **settings)
    else:
        phalanx.fit(model, x, y, **settings)
    print(f"SECONDS {statistics.median(taken[1:]) / BATCHES}", flush=True)


def run_on_servers(name: str, directory: str) -> None:
    """Run as one task of a cluster; the chief prints the examples per second."""
    import tensorflow as tf

    x, y = make_clicks(BATCHES, PS_ROWS)
    first, last = CLUSTER_STEPS[name]

    def make_data() -> Any:
        return tf.data.Dataset.from_tensor_slices((tuple(x), y)).batch(BATCH, drop_remainder=True)

    if name == "plain":
        speed = _run_plain(make_data, first, last)
    else:
        speed = _run_phalanx(make_data, first, last, directory)
    if speed:
        print(f"SPEED {speed * BATCH}", flush=True)
    os._exit(0)


def _run_plain(make_data: Callable[[], Any], first: int, last: int) -> float:
    import keras
    from ps_steps import connect_coordinator, make_plain_step

    coordinator, strategy = connect_coordinator()
    with strategy.scope():
        model = make_dlrm(keras.layers.Embedding, PS_ROWS)
        model.optimizer.build(model.trainable_variables)
    step = make_plain_step(model, model.optimizer, model.loss, strategy)
    iterator = iter(coordinator.create_per_worker_dataset(lambda: make_data().repeat()))
    speed = 0.0
    for steps in (first, last):
        started = time.perf_counter()
        for _ in range(steps):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        speed = steps / (time.perf_counter() - started)
    return speed


def _run_phalanx(make_data: Callable[[], Any], first: int, last: int, directory: str) -> float:
    import phalanx
    from phalanx.train.loop.session import Session

    class Speed(phalanx.hooks.Hook):
        """Measures steps per second from step `first` to the end."""

        start: tuple[int, float] | None = None
        figure = 0.0

        def after_step(self, session: Session) -> None:
            if self.start is None and session.step >= first:
                self.start = (session.step, time.perf_counter())
            elif self.start is not None:
                self.figure = (session.step - self.start[0]) / (time.perf_counter() - self.start[1])

    speed = Speed()
    experiment = phalanx.Experiment(
        model=lambda: make_dlrm(phalanx.layers.Embedding, PS_ROWS),
        train_data=lambda context: make_data(),
        name="dlrm",
    )
    config = phalanx.RunConfig(
        model_dir=directory, train_steps=first + last, chief_trains=False, log_steps=None,
        global_batch_size=BATCH * SHAPE["worker"], summary_steps=None, save_steps=None,
        save_seconds=None,
    )  # fmt: skip
    phalanx.run(experiment, config, hooks=[speed])
    return speed.figure


def make_training(layer: Callable[[], Any], spec: Any) -> Callable[[Any], None]:
    """Return a function that trains a model of one table on one batch."""
    import keras
    import tensorflow as tf

    import phalanx
    from phalanx.train.step.step_function import StepFunction
    from phalanx.train.variables.clipping import Clipping
    from phalanx.train.variables.device_variables import DeviceVariables

    def make_model() -> Any:
        ids = keras.Input((spec[0].shape[1],), dtype="int64")
        vectors = keras.layers.Flatten()(layer()(ids))
        model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Dense(16)(vectors)))
        model.compile(keras.optimizers.Adagrad(0.01), "mse")
        return model

    step = StepFunction(phalanx.Experiment(model=make_model), phalanx.Context(batch_size=BATCH))
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


def make_ids(seed: int, fields: int = 26) -> list[Any]:
    """Return batches of ids, most of which are rare, and labels."""
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(seed)
    batches = []
    for _ in range(BATCHES):
        ids = (random.pareto(0.6, (BATCH, fields)) * 1000).clip(0, 1e15).astype(np.int64)
        labels = (ids[:, :1] % 2).astype("float32")
        batches.append((tf.constant(ids), tf.constant(labels)))
    return batches


def compare_tables(contestants: str) -> None:
    """Print the ratio of the CPU times of two tables, in one process."""
    import tensorflow as tf

    import phalanx

    layers = phalanx.layers
    tables: dict[str, tuple[Callable[[], Any], int]] = {
        "fixed": (lambda: layers.Embedding(ROWS, 32, hash_inputs=True), ROWS),
        "growing": (lambda: layers.DynamicEmbedding(32, ROWS), ROWS),
        "small": (lambda: layers.Embedding(SMALL_ROWS, WIDTH, hash_inputs=True), SMALL_ROWS),
        "large": (lambda: layers.Embedding(LARGE_ROWS, WIDTH, hash_inputs=True), LARGE_ROWS),
    }
    spec = tf.data.Dataset.from_tensors(make_ids(0)[0]).element_spec
    names = contestants.split(",")
    trainings = {name: make_training(tables[name][0], spec) for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(ROUNDS + 1):
        batches = make_ids(number)
        for name, train in trainings.items():
            started = time.process_time()
            for batch in batches:
                train(batch)
            # The first round traces, and fills what was empty.
            if number:
                seconds[name].append((time.process_time() - started) / BATCHES)
    for name, taken in seconds.items():
        print(f"{name}: {1000 * statistics.median(taken):.1f} ms of CPU per step of {BATCH}")
    first, second = (seconds[name] for name in names)
    ratio = statistics.median(a / b for a, b in zip(first, second, strict=True))
    print(f"RATIO {ratio}", flush=True)


def main() -> None:
    figures: dict[str, list[float]] = {}
    for number in range(3):
        for name in ("keras", "phalanx"):
            taken = figure(_run_alone("fit", name), "SECONDS")
            figures.setdefault(name, []).append(taken)
            print(f"round {number + 1}: {name} {1000 * taken:.1f} ms of CPU per step", flush=True)
    ratio = _median_ratio(figures["keras"], figures["phalanx"])
    print(f"RESULT dlrm_one_process {ratio:.2f} x Keras goal >= 1.3", flush=True)
    speeds: dict[str, list[float]] = {}
    for number in range(3):
        for name in ("plain", "phalanx"):
            with tempfile.TemporaryDirectory() as directory:
                flags = ("servers", name, directory)
                output = run_cluster(Path(__file__), SHAPE, *flags, seconds=900)
            speeds.setdefault(name, []).append(figure(output, "SPEED"))
            print(f"round {number + 1}: {name} {speeds[name][-1]:.0f} examples/s", flush=True)
    ratio = _median_ratio(speeds["phalanx"], speeds["plain"])
    print(f"RESULT dlrm_on_servers {ratio:.2f} x the plain way goal >= 3", flush=True)
    output = _run_alone("tables", "large,small")
    print(output, end="")
    print(f"RESULT step_time_large_table {figure(output, 'RATIO'):.3f} x goal <= 1.15", flush=True)
    output = _run_alone("tables", "fixed,growing")
    print(output, end="")
    ratio = figure(output, "RATIO")
    print(f"RESULT growing_table_speed {ratio:.3f} of the fixed table's goal >= 0.5")


def _run_alone(*arguments: str) -> str:
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _median_ratio(first: list[float], second: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(first, second, strict=True))


if __name__ == "__main__":
    modes: dict[str, Callable[..., None]] = {
        "fit": fit_one_process,
        "servers": run_on_servers,
        "tables": compare_tables,
    }
    modes[sys.argv[1]](*sys.argv[2:]) if sys.argv[1:] else main()
