"""Trains for ever, on a cluster, until the loss of an evaluation is small."""

import sys

import numpy as np
import tensorflow as tf

X = np.random.RandomState(0).randn(200, 3).astype(np.float32)


def input_fn():
    return (
        tf.data.Dataset.from_tensor_slices(({"x": X}, X.sum(1, keepdims=True))).repeat().batch(20)
    )


def model_fn(features, labels, mode):
    outputs = tf.layers.dense(features["x"], 1)
    loss = tf.losses.mean_squared_error(labels, outputs)
    train_op = tf.train.GradientDescentOptimizer(0.01).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


config = tf.estimator.RunConfig(model_dir=sys.argv[1], save_checkpoints_steps=200)
model = tf.estimator.Estimator(model_fn, config=config)
hook = tf.contrib.estimator.stop_if_lower_hook(model, "loss", 0.01, run_every_secs=1)
tf.estimator.train_and_evaluate(
    model,
    tf.estimator.TrainSpec(input_fn, hooks=[hook]),
    tf.estimator.EvalSpec(input_fn, steps=5, throttle_secs=0),
)
print(f"{config.task_type} {config.task_id} has trained")
