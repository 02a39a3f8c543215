"""Hooks that run only on the master: one logs the loss, one changes the learning rate.

phalanx run --ps 1 --workers 3 examples/custom_loop/logging_on_master.py
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


def halve(session):
    session.learning_rate /= 2
    print(f"the learning rate is {session.learning_rate:g} from step {session.step} on")


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--checkpoint-dir", default="runs/logging")
    parser.add_argument("--steps", type=int, default=200)
    arguments, _ = parser.parse_known_args()

    spec = phalanx.TaskSpec()
    spec.create_server()
    with phalanx.DistributedSession(
        spec,
        arguments.checkpoint_dir,
        hooks=[hooks.StopAtStepHook(arguments.steps)],
        chief_only_hooks=[
            hooks.LoggingHook(hooks.Every(steps=20)),
            hooks.ActionHook(hooks.At(arguments.steps // 2), halve),
        ],
        log_step_count_steps=None,
    ) as session:
        with session.scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            optimizer = keras.optimizers.SGD(0.05)
            optimizer.build(model.trainable_variables)
        session.dataset(points)

        def step(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                error = model(x, training=True) - y
                loss = tf.reduce_mean(error**2)
                share = loss / session.num_replicas
            gradients = tape.gradient(share, model.trainable_weights)
            optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
            return {"loss": loss, "mean_error": tf.abs(error)}

        while not session.should_stop():
            session.run(step)


if __name__ == "__main__":
    main()
