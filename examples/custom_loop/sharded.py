"""A custom training loop in which each worker reads its own shard of the data.

phalanx run --workers 3 examples/custom_loop/sharded.py --checkpoint-dir runs/sharded
phalanx run --ps 1 --workers 3 examples/custom_loop/sharded.py --checkpoint-dir runs/sharded
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx import hooks


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--checkpoint-dir", default="runs/sharded")
    parser.add_argument("--steps", type=int, default=200)
    arguments, _ = parser.parse_known_args()

    spec = phalanx.TaskSpec()
    spec.create_server()

    def points():
        x = np.random.default_rng(0).normal(size=(1200, 8)).astype("float32")
        y = x @ np.arange(8, dtype="float32").reshape(8, 1)
        data = tf.data.Dataset.from_tensor_slices((x, y))
        # Shard before the shuffle: otherwise workers read some examples twice.
        return data.shard(spec.num_workers, spec.shard_index).shuffle(500).batch(32)

    stop = hooks.StopAtStepHook(arguments.steps)
    with phalanx.DistributedSession(spec, arguments.checkpoint_dir, hooks=[stop]) as session:
        with session.scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            optimizer = keras.optimizers.SGD(0.05)
            optimizer.build(model.trainable_variables)
        session.dataset(points)

        def step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
                share = loss / session.num_replicas
            gradients = tape.gradient(share, model.trainable_weights)
            optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
            return loss

        while not session.should_stop():
            session.run(step)


if __name__ == "__main__":
    main()
