"""A model with growing tables, for the tests with real processes."""

from __future__ import annotations

import argparse
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx.train.variables import row_transfer

EXAMPLES = 91


def make_model() -> Any:
    start = keras.initializers.RandomUniform(seed=3)
    user, item = (keras.Input((), dtype="int64", name=name) for name in ("user", "item"))
    users = phalanx.layers.DynamicEmbedding(
        3, max_rows=80, min_count=2, evict="rarest", num_oov_indices=3, name="users",
        embeddings_initializer=start,
    )  # fmt: skip
    items = phalanx.layers.DynamicEmbedding(
        3, max_rows=36, max_age=9, mask_zero=True, name="items", embeddings_initializer=start,
        optimizer=keras.optimizers.Adagrad(0.1),
    )  # fmt: skip
    # One table is looked up twice in a step.
    vectors = [users(user), users(item), items(item)]
    dense = keras.layers.Dense(1, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    score = dense(keras.layers.Concatenate()(vectors))
    model = keras.Model({"user": user, "item": item}, score)
    model.compile(keras.optimizers.Adam(0.02, global_clipnorm=1.0), "mse")
    return model


def make_data(context: phalanx.Context) -> Any:
    random = np.random.default_rng(0)
    user = random.zipf(1.3, EXAMPLES) % 1000 * 7919 - 99
    item = random.zipf(1.3, EXAMPLES) % 100
    y = (np.sin(user) + np.cos(item)).astype("float32")[:, None]
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
    result = phalanx.run(experiment, config)
    print(f"METRICS {result.metrics}", flush=True)
    if result.model is not None:
        for name in ("users", "items"):
            print(f"{name} {result.model.get_layer(name).statistics()}", flush=True)


if __name__ == "__main__":
    main()
