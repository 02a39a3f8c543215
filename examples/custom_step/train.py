"""A custom training step: an autoencoder that computes its own loss and logs a second value.

    python examples/custom_step/train.py --model-dir runs/autoencoder
    phalanx run --workers 2 examples/custom_step/train.py --model-dir runs/autoencoder

Phalanx computes the gradients of `loss`, combines those of all replicas, and applies them.
"""

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import phalanx


class Autoencoder(phalanx.Experiment):
    def model(self) -> keras.Model:
        encoder = [keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(4)]
        decoder = [keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(64)]
        return keras.Sequential([keras.Input((64,)), *encoder, *decoder])

    def optimizer(self, context: phalanx.Context) -> keras.optimizers.Optimizer:
        rate = phalanx.LinearScaling(0.001, replicas=context.num_replicas, warmup_steps=50)
        return keras.optimizers.Adam(rate)

    def train_data(self, context: phalanx.Context) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices(make_waves(4000, seed=1))
        data = data.shard(context.num_shards, context.shard)
        return data.shuffle(4000).batch(context.batch_size)

    def eval_data(self, context: phalanx.Context) -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices(make_waves(500, seed=2))
        return data.shard(context.num_shards, context.shard).batch(context.batch_size)

    def train_step(self, model: keras.Model, batch: tf.Tensor) -> dict[str, tf.Tensor]:
        noisy = batch + tf.random.normal(tf.shape(batch), stddev=0.1)
        error = tf.reduce_mean(tf.square(model(noisy, training=True) - batch), axis=-1)
        return {"loss": error, "worst": tf.reduce_max(error)}

    def eval_step(self, model: keras.Model, batch: tf.Tensor) -> dict[str, tf.Tensor]:
        error = tf.reduce_mean(tf.square(model(batch, training=False) - batch), axis=-1)
        return {"loss": error, "worst": tf.reduce_max(error)}


def make_waves(count: int, seed: int) -> Any:
    random = np.random.default_rng(seed)
    phase, speed = random.uniform(0, 6.28, (count, 1)), random.uniform(0.1, 0.4, (count, 1))
    return np.sin(phase + speed * np.arange(64)).astype("float32")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    phalanx.RunConfig.add_flags(parser)
    parser.set_defaults(train_steps=500, global_batch_size=64)
    result = phalanx.run(Autoencoder(), phalanx.RunConfig.from_flags(parser.parse_args()))
    if result.metrics:
        print(f"error {result.metrics['loss']:.4f}, at worst {result.metrics['worst']:.4f}")


if __name__ == "__main__":
    main()
