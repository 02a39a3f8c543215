"""Imports TensorFlow 1 in the ways of the time, and prints what it got, a line for each."""

import tensorflow as tf
from tensorflow.contrib import crf
from tensorflow.contrib.learn.python.learn import learn_runner
from tensorflow.python.estimator import estimator
from tensorflow.python.framework import ops

flags = tf.app.flags
flags.DEFINE_string("data_dir", "nowhere", "Where the data is.")
flags.DEFINE_string("log_dir", "logs", "The name of a flag that absl has, too.")
FLAGS = flags.FLAGS


def error_of(function):
    try:
        return f"no error: {function()}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def import_old_name():
    from tensorflow import scalar_summary

    return scalar_summary


def main(_):
    outputs = tf.layers.dense(tf.placeholder(tf.float32, [None, 3]), 2)
    print("version", tf.__version__)
    print("without", [name for name in dir(tf.compat.v1) if not hasattr(tf, name)], tf.newaxis)
    print("graph", outputs.graph is ops.get_default_graph(), tf.executing_eagerly())
    print("flag", FLAGS.data_dir, FLAGS.log_dir)
    print("module", learn_runner.__name__, estimator.__name__)
    print(error_of(lambda: crf.crf_log_likelihood(outputs)))
    print(error_of(lambda: tf.contrib.tpu.TPUEstimator()))
    print(error_of(lambda: tf.mul(1, 2)))
    print(error_of(lambda: tf.GradientTapes))
    print(error_of(lambda: tf.summary_v2))
    print(error_of(import_old_name))
    with tf.Session() as session:
        print("session", session.run(tf.constant(1) + 1))
    outputs.numpy()


if __name__ == "__main__":
    tf.app.run()
