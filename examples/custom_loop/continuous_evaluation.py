"""The last worker does not train. It evaluates each new checkpoint.

phalanx run --ps 1 --workers 3 examples/custom_loop/continuous_evaluation.py
"""

import argparse

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx import hooks


def points(seed=0):
    x = np.random.default_rng(seed).normal(size=(1024, 8)).astype("float32")
    y = x @ np.arange(8, dtype="float32").reshape(8, 1)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(32)


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--checkpoint-dir", default="runs/evaluated")
    parser.add_argument("--seconds", type=float, default=5)
    arguments, _ = parser.parse_known_args()

    spec = phalanx.TaskSpec().use_last_worker_as_evaluator()
    spec.create_server()
    with phalanx.DistributedSession(
        spec,
        arguments.checkpoint_dir,
        hooks=[hooks.StopAtTimeHook(arguments.seconds)],
        save_checkpoint_secs=2,
    ) as session:
        with session.scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
            optimizer = keras.optimizers.SGD(0.05)
            optimizer.build(model.trainable_variables)
        if spec.is_evaluator():
            test = points(seed=1)
            for _ in session.checkpoints():
                session.record(loss=np.mean([np.mean((model(x) - y) ** 2) for x, y in test]))
            return
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
