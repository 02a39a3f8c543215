"""Synchronous training whose chief fails in a step, on one ps and two workers."""

import sys

import tensorflow as tf


class Fail(tf.train.SessionRunHook):
    def __init__(self):
        self.runs = 0

    def before_run(self, run_context):
        self.runs += 1
        if self.runs == 5:
            raise ValueError("the chief has failed")


def model_fn(features, labels, mode, config):
    loss = tf.losses.mean_squared_error(labels, tf.layers.dense(features, 1))
    optimizer = tf.train.SyncReplicasOptimizer(
        tf.train.GradientDescentOptimizer(0.01), replicas_to_aggregate=2, total_num_replicas=2
    )
    return tf.estimator.EstimatorSpec(
        mode,
        loss=loss,
        train_op=optimizer.minimize(loss, tf.train.get_global_step()),
        training_hooks=[optimizer.make_session_run_hook(config.is_chief)],
        training_chief_hooks=[Fail()],
    )


def input_fn():
    return tf.ones([4, 2]), tf.ones([4, 1])


def main(_):
    seconds = int(sys.argv[1])
    config = tf.estimator.RunConfig(
        model_dir=sys.argv[2],
        session_config=tf.ConfigProto(operation_timeout_in_ms=1000 * seconds),
        session_creation_timeout_secs=seconds,
    )
    tf.estimator.train_and_evaluate(
        tf.estimator.Estimator(model_fn, config=config),
        tf.estimator.TrainSpec(input_fn, max_steps=1000),
        tf.estimator.EvalSpec(input_fn, steps=1),
    )


tf.app.run(main)
