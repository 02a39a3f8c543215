"""A custom training loop that runs in one process, with all-reduce and on parameter servers.

python examples/custom_loop/plain.py --checkpoint-dir runs/plain
phalanx run --ps 1 --workers 3 examples/custom_loop/plain.py --checkpoint-dir runs/plain
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx import hooks


def points():
    x = np.random.default_rng(0).normal(size=(1024, 8)).astype("float32")
    y = x @ np.arange(8, dtype="float32").reshape(8, 1)
    return tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1024).batch(32)


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--checkpoint-dir", default="runs/plain")
    parser.add_argument("--steps", type=int, default=200)
    arguments, _ = parser.parse_known_args()

    spec = phalanx.TaskSpec()
    # Parameter servers, and workers of a cluster with ps, serve the chief here until it is done.
    spec.create_server()
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
                # In synchronous training, the optimizer sums the gradients of all replicas.
                share = loss / session.num_replicas
            gradients = tape.gradient(share, model.trainable_weights)
            optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
            return loss

        values = {}
        while not session.should_stop():
            values = session.run(step)
        print(f"step {session.step}: {values}")


if __name__ == "__main__":
    main()
