"""Measures how long the training loop of this process waits for its data."""

import tensorflow as tf

from phalanx.train.types import Dataset, Tensor


class DataWait:
    """Counts the seconds between the request of a batch and its arrival.

    The loop reads batches inside of a TensorFlow function, so the dataset itself keeps the time: in
    a pair of datasets, the first is read before the second. It takes the time of the request.
    """

    def __init__(self) -> None:
        # Another task's device would be asked over the network for each batch.
        with tf.device("/device:CPU:0"):
            self._seconds = tf.Variable(0.0, trainable=False, dtype=tf.float64)

    @property
    def seconds(self) -> float:
        """How long the loop has waited so far."""
        return float(self._seconds.numpy())

    def watch(self, data: Dataset) -> Dataset:
        """Return the same dataset, whose readers are observed."""
        requests = tf.data.Dataset.counter().map(lambda _: tf.timestamp())
        options = tf.data.Options()
        # A buffer behind the measurement would be filled ahead of all requests.
        options.experimental_optimization.inject_prefetch = False
        return tf.data.Dataset.zip((requests, data)).map(self._count).with_options(options)

    def _count(self, requested: Tensor, batch: Tensor) -> Tensor:
        self._seconds.assign_add(tf.timestamp() - requested)
        return batch
