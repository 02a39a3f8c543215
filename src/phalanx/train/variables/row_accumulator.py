"""Sums of sparse gradients: the rows that several trainers add to one update."""

from collections.abc import Sequence

import tensorflow as tf

from phalanx.train.types import Tensor, TFQueue
from phalanx.train.variables.device_variables import DeviceVariables

Rows = tuple[Tensor, Tensor]
"""Row indices, and the gradient of each row."""


class RowAccumulator:
    """Collects the sparse gradients of each update, as an accumulator sums the dense ones.

    Each trainer has one queue for each buffer with such a gradient, on the parameter server that
    holds the rows. A trainer enqueues its rows before it adds to the dense sums, so that the rows
    are there when the sums are taken.
    """

    def __init__(self, variables: DeviceVariables, trainers: int) -> None:
        self._variables = variables
        self._queues: dict[int, list[TFQueue]] = {}
        for index in variables.sparse_gradients():
            buffer = variables.layout.buffers[index]
            with tf.device(variables.stores[buffer.store].device):
                types = [tf.int64, tf.int64, tf.as_dtype(buffer.dtype)]
                self._queues[index] = [tf.queue.FIFOQueue(2**20, types) for _ in range(trainers)]

    def add(self, trainer: Tensor, token: Tensor, rows: Sequence[Rows]) -> list[Tensor]:
        """Enqueue the rows of a trainer, one entry for each buffer; return the operations."""
        operations = []
        for queues, (indices, values) in zip(self._queues.values(), rows, strict=True):
            for number, queue in enumerate(queues):
                entry = [token, indices, values]
                operations.append(
                    tf.cond(
                        trainer == number,
                        lambda queue=queue, entry=entry: _enqueue(queue, entry),
                        lambda: tf.constant(False),
                    )
                )
        return operations

    def take(self, token: Tensor, counted: Tensor) -> dict[int, Rows]:
        """Take the rows that counted trainers added for a token; drop the rows of older tokens.

        Returns the rows by the index of their buffer.
        """
        return {
            index: self._take_buffer(index, queues, token, counted)
            for index, queues in self._queues.items()
        }

    def _take_buffer(
        self, index: int, queues: list[TFQueue], token: Tensor, counted: Tensor
    ) -> Rows:
        buffer = self._variables.layout.buffers[index]
        width = list(buffer.shape[1:])
        with tf.device(self._variables.stores[buffer.store].device):
            taken = [
                tf.while_loop(
                    lambda *_, queue=queue: queue.size() > 0,
                    lambda indices, values, queue=queue, trainer=trainer: _take_newer(
                        queue, token, counted[trainer] > 0, indices, values, width
                    ),
                    (tf.zeros([0], tf.int64), tf.zeros([0, *width], buffer.dtype)),
                    shape_invariants=(tf.TensorShape([None]), tf.TensorShape([None, *width])),
                    parallel_iterations=1,
                )
                for trainer, queue in enumerate(queues)
            ]
            indices, values = zip(*taken, strict=True)
            return tf.concat(indices, 0), tf.concat(values, 0)


def _enqueue(queue: TFQueue, entry: list[Tensor]) -> Tensor:
    with tf.control_dependencies([queue.enqueue(entry)]):
        return tf.constant(True)


def _take_newer(
    queue: TFQueue,
    token: Tensor,
    is_counted: Tensor,
    indices: Tensor,
    values: Tensor,
    width: list[int],
) -> Rows:
    entry_token, new_indices, new_values = queue.dequeue()
    new_indices = tf.ensure_shape(new_indices, [None])
    new_values = tf.ensure_shape(new_values, [None, *width])
    is_wanted = tf.logical_and(entry_token == token, is_counted)
    rows = tf.cond(is_wanted, lambda: (new_indices, new_values), lambda: (indices, values))
    return rows[0], rows[1]
