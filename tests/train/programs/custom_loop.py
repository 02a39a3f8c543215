"""A custom loop that gives the same weights on every cluster that trains by all-reduce."""

import sys

import keras
import numpy as np
import tensorflow as tf

import phalanx
from phalanx import hooks

directory, steps, batch = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
spec = phalanx.TaskSpec()


def points(context: phalanx.Context) -> tf.data.Dataset:
    x = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
    y = x @ np.array([[1.0], [-2.0], [0.5], [3.0]], "float32")
    data = tf.data.Dataset.from_tensor_slices((x, y))
    return data.shard(context.num_shards, context.shard).batch(batch // context.num_shards)


class Change(keras.callbacks.Callback):  # type: ignore[misc]
    """Changes a weight and the learning rate, on the chief."""

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        if batch == 3:
            self.model.layers[0].bias.assign([5.0])
        if batch == 6:
            self.model.optimizer.learning_rate = 0.05


stop = hooks.StopAtStepHook(steps)
with phalanx.DistributedSession(spec, directory, [stop], callbacks=[Change()]) as session:
    with session.scope():
        kernel = keras.initializers.RandomNormal(seed=3)
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1, kernel_initializer=kernel, name="line")]
        )
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(model.trainable_variables)
    model.compile(optimizer)
    session.model = model
    session.dataset(points)

    def step(data: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            share = loss / session.num_replicas
        gradients = tape.gradient(share, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
        return loss

    while not session.should_stop():
        session.run(step)
    print(f"ended at {session.step}")
