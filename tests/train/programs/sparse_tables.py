"""A model with sparse tables, for the tests with real processes."""

from __future__ import annotations

import argparse
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx.train.variables import row_transfer

ROWS = 40


def make_model() -> Any:
    user, item = (keras.Input((), dtype="int64", name=name) for name in ("user", "item"))
    users = phalanx.layers.Embedding(ROWS, 3, name="users")(user)
    items = phalanx.layers.Embedding(ROWS + 1, 3, name="items")(item)
    # A fixed seed: the weights have more bytes than some tests allow in a message.
    initializer = keras.initializers.GlorotUniform(seed=3)
    hidden = keras.layers.Dense(16, "tanh", kernel_initializer=initializer)(
        keras.layers.Concatenate()([users, items])
    )
    score = keras.layers.Dense(1)(hidden)
    model = keras.Model({"user": user, "item": item}, score)
    model.compile(keras.optimizers.Adam(0.02), "mse")
    return model


def make_data(context: phalanx.Context) -> Any:
    user, item = np.random.default_rng(0).integers(0, ROWS, (2, 91))
    y = ((user - item) / ROWS).astype("float32")[:, None]
    data = tf.data.Dataset.from_tensor_slices(({"user": user, "item": item}, y))
    return data.shard(context.num_shards, context.shard).batch(context.batch_size)


def main() -> None:
    parser = argparse.ArgumentParser()
    phalanx.RunConfig.add_flags(parser)
    parser.add_argument("--devices-there", type=int, default=1)
    parser.add_argument("--chunk-bytes", type=int, default=row_transfer.CHUNK_BYTES)
    arguments = parser.parse_args()
    row_transfer.CHUNK_BYTES = arguments.chunk_bytes
    if arguments.devices_there > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * arguments.devices_there
        tf.config.set_logical_device_configuration(cpu, logical)
    config = phalanx.RunConfig.from_flags(arguments, seed=1)
    experiment = phalanx.Experiment(model=make_model, train_data=make_data, eval_data=make_data)
    print(f"METRICS {phalanx.run(experiment, config).metrics}", flush=True)


if __name__ == "__main__":
    main()
