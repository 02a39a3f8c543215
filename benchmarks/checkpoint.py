"""How long a save stops the training, and how many bytes an incremental one writes.

One process has a table of 8 million rows of 32 numbers with a slot, 2 GB. A save in the background
is compared with a blocking `tf.train.Checkpoint.save` of the same objects, in turns. Then 5 % of
the rows are changed, and saved. Needs 5 GB of memory and of disk; BENCH_ROWS sets another size.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

import phalanx
from phalanx.train.loop.position import Position
from phalanx.train.model_dir.checkpoint import Checkpoints
from phalanx.train.model_dir.table_changes import find_base
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables

ROWS, WIDTH = int(os.environ.get("BENCH_ROWS", "8_000_000")), 32
ROUNDS = 3
CHANGED = 0.05


def make_model() -> Any:
    index = keras.Input((), dtype="int64")
    rows = phalanx.layers.Embedding(ROWS, WIDTH, name="table")(index)
    model = keras.Model(index, keras.layers.Dense(1)(rows))
    model.compile(keras.optimizers.Adagrad(0.1), "mse")
    return model


def main() -> None:
    step = StepFunction(phalanx.Experiment(model=make_model), phalanx.Context(batch_size=1))
    step.build((tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 1])))
    host_variables = step.make_host_variables()
    for table in host_variables.tables():
        table.tracks_changes = True
    variables = DeviceVariables.place(host_variables, ["/device:CPU:0"], Clipping())
    variables.push()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as directory:
        stalls, blocking = [], []
        whole = tf.train.Checkpoint(model=step.model, optimizer=host_variables.optimizer)
        background = Checkpoints(
            f"{directory}/run", step, host_variables, keep_max=1, in_background=True,
            full_save_every=ROUNDS + 2,
        )  # fmt: skip
        for number in range(ROUNDS):
            started = time.perf_counter()
            path = whole.save(f"{directory}/plain/model")
            blocking.append(time.perf_counter() - started)
            _remove(path)
            # Nothing has noted what changed before: each of these checkpoints is full.
            background._base = None
            started = time.perf_counter()
            background.save(number, Position())
            stalls.append(time.perf_counter() - started)
            path = background.finish_save(waits=True) or ""
            assert find_base(path) is None
        full = _count_bytes(path)
        _change_rows(variables)
        started = time.perf_counter()
        background.save(ROUNDS, Position())
        stall = time.perf_counter() - started
        path = background.finish_save(waits=True) or ""
        assert find_base(path) is not None
        delta = _count_bytes(path)
    usual = statistics.median(blocking)
    print(f"full checkpoint: {full / 1e9:.2f} GB, of 5 % changed rows: {delta / 1e9:.3f} GB")
    print(f"blocking save: {', '.join(f'{s:.2f}' for s in blocking)} s")
    print(f"stall of a save: {', '.join(f'{s:.2f}' for s in stalls)} s, of changes: {stall:.2f} s")
    ratio = statistics.median(stalls) / usual
    print(f"RESULT save_stall {100 * ratio:.1f} % of a blocking save goal <= 4")
    print(f"RESULT incremental_save_stall {100 * stall / usual:.1f} % of a blocking save goal <= 4")
    print(f"RESULT incremental_save_bytes {delta / full:.3f} of a full save goal <= 0.167")


def _change_rows(variables: DeviceVariables) -> None:
    """Update 5 % of the rows, as steps do."""
    (store,) = variables.stores
    optimizer = next(iter(store.row_optimizers.values()))
    chosen = tf.random.shuffle(tf.range(ROWS, dtype=tf.int64), seed=1)[: int(ROWS * CHANGED)]
    gradient = tf.IndexedSlices(tf.ones([len(chosen), WIDTH]), chosen, [ROWS, WIDTH])
    tf.function(lambda: optimizer.apply(gradient), autograph=False)()


def _count_bytes(path: str) -> int:
    return sum(file.stat().st_size for file in Path(path).parent.glob(f"{Path(path).name}.*"))


def _remove(path: str) -> None:
    for file in Path(path).parent.glob(f"{Path(path).name}.*"):
        file.unlink()


if __name__ == "__main__":
    main()
