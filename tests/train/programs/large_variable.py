"""Trains a large dense weight; prints how much memory this task needed, and an evaluation."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import phalanx

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


def main() -> None:
    parser = argparse.ArgumentParser()
    phalanx.RunConfig.add_flags(parser)
    parser.add_argument("--rows", type=int, required=True)
    arguments = parser.parse_args()
    rows = arguments.rows
    experiment = phalanx.Experiment(
        model=lambda: make_model(rows),
        train_data=lambda context: make_data(rows, context),
        eval_data=lambda context: make_data(rows, context),
    )
    before = peak_bytes()
    result = phalanx.run(experiment, phalanx.RunConfig.from_flags(arguments, seed=1))
    print(f"STEP {result.step} LOSS {result.metrics.get('loss')}")
    print(f"PEAK {peak_bytes()} BEFORE {before}", flush=True)


if __name__ == "__main__":
    main()
