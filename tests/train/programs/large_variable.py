"""Trains a large dense weight; prints its sum at the start, and the memory of this task."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx.train.loop.session import Session

WIDTH, IDS = 256, 64


def make_model(rows: int) -> Any:
    index = keras.Input((), dtype="int64")
    vectors = keras.layers.Embedding(rows, WIDTH, keras.initializers.RandomUniform(seed=1))(index)
    model = keras.Model(index, keras.layers.Dense(1)(vectors))
    # It needs no slots, and the gradient of each lookup alone.
    model.compile(keras.optimizers.SGD(0.5, clipnorm=10.0), "mse")
    return model


def make_data(rows: int, context: phalanx.Context) -> Any:
    """Return indices that are spread over the whole weight, each with a random label."""
    indices = np.arange(IDS, dtype=np.int64) * (rows // IDS)
    y = np.random.default_rng(0).normal(size=(IDS, 1)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((indices, y))
    return data.shard(context.num_shards, context.shard).batch(context.batch_size)


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


class Sum(phalanx.hooks.Hook):
    """Prints the sum of the weight, found where its parts are."""

    def __init__(self, stops: bool) -> None:
        self._stops = stops

    def begin(self, session: Session) -> None:
        total = 0.0
        for shard in session.model.trainable_variables[0].shards:
            with tf.device(shard.device):
                total += float(tf.reduce_sum(tf.abs(shard)).numpy())
        print(f"SUM {total:.9g} AT {session.step}", flush=True)
        if self._stops:
            session.request_stop("it is only saved")


def main() -> None:
    parser = argparse.ArgumentParser()
    phalanx.RunConfig.add_flags(parser)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--only-save", action="store_true")
    arguments = parser.parse_args()
    rows = arguments.rows
    experiment = phalanx.Experiment(
        model=lambda: make_model(rows),
        train_data=lambda context: make_data(rows, context),
    )
    before = peak_bytes()
    config = phalanx.RunConfig.from_flags(arguments, seed=1, chief_trains=False)
    phalanx.run(experiment, config, hooks=[Sum(arguments.only_save)])
    print(f"PEAK {peak_bytes()} BEFORE {before}", flush=True)


if __name__ == "__main__":
    main()
