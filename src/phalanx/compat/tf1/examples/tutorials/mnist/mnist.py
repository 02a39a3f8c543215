"""tensorflow.examples.tutorials.mnist.mnist: a network with two hidden layers."""

import math
from typing import Any

import tensorflow.compat.v1 as tf

NUM_CLASSES = 10
IMAGE_SIZE = 28
IMAGE_PIXELS = IMAGE_SIZE * IMAGE_SIZE


def inference(images: Any, hidden1_units: int, hidden2_units: int) -> Any:
    """Return the logits.

    Args:
        images: The images, as vectors.
        hidden1_units: The size of the first hidden layer.
        hidden2_units: The size of the second hidden layer.

    Returns:
        The logits.
    """
    hidden1 = tf.nn.relu(_connect(images, IMAGE_PIXELS, hidden1_units, "hidden1"))
    hidden2 = tf.nn.relu(_connect(hidden1, hidden1_units, hidden2_units, "hidden2"))
    return _connect(hidden2, hidden2_units, NUM_CLASSES, "softmax_linear")


def _connect(inputs: Any, size: int, units: int, name: str) -> Any:
    with tf.name_scope(name):
        weights = tf.Variable(
            tf.truncated_normal([size, units], stddev=1 / math.sqrt(size)), name="weights"
        )
        biases = tf.Variable(tf.zeros([units]), name="biases")
        return tf.matmul(inputs, weights) + biases


def loss(logits: Any, labels: Any) -> Any:
    """Return the mean cross-entropy.

    Args:
        logits: The logits.
        labels: The digits.

    Returns:
        The loss.
    """
    return tf.losses.sparse_softmax_cross_entropy(labels=tf.cast(labels, tf.int64), logits=logits)


def training(loss: Any, learning_rate: float) -> Any:
    """Return the operation that trains a step, and write the loss.

    Args:
        loss: The loss.
        learning_rate: The learning rate.

    Returns:
        The operation.
    """
    tf.summary.scalar("loss", loss)
    step = tf.Variable(0, name="global_step", trainable=False)
    return tf.train.GradientDescentOptimizer(learning_rate).minimize(loss, global_step=step)


def evaluation(logits: Any, labels: Any) -> Any:
    """Return how many of the images are classified correctly.

    Args:
        logits: The logits.
        labels: The digits.

    Returns:
        The number.
    """
    return tf.reduce_sum(tf.cast(tf.nn.in_top_k(logits, labels, 1), tf.int32))
