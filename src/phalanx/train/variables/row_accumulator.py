"""Sums of sparse gradients: the rows that several trainers add to one update."""

from collections.abc import Callable, Sequence
from functools import partial

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.types import Tensor, TFQueue
from phalanx.train.variables.device_variables import DeviceVariables

Rows = list[Tensor]
"""Row indices and the gradient of each row; of a growing table, also ids and their counts."""


class RowAccumulator:
    """Collects the sparse gradients of each update, as an accumulator sums the dense ones.

    Each trainer has one queue for each buffer with such a gradient, on the parameter server that
    holds the rows. A trainer enqueues its rows before it adds to the dense sums, so that the rows
    are there when the sums are taken.
    """

    def __init__(self, variables: DeviceVariables, trainers: int) -> None:
        self._variables = variables
        self._queues: dict[int, list[TFQueue]] = {}
        self._empty: dict[int, Callable[[], Rows]] = {}
        growing = variables.growing_buffers()
        for index in variables.sparse_gradients():
            buffer = variables.layout.buffers[index]
            types = [tf.int64, tf.as_dtype(buffer.dtype)]
            shapes = [[0], [0, *buffer.shape[1:]]]
            if index in growing:
                types, shapes = [*types, tf.int64, tf.int64], [*shapes, [0], [0]]
            self._empty[index] = partial(_make_empty, types, shapes)
            with tf.device(variables.stores[buffer.store].device):
                queues = [tf.queue.FIFOQueue(2**20, [tf.int64, *types]) for _ in range(trainers)]
                self._queues[index] = queues

    @unconverted
    def add(self, trainer: Tensor, token: Tensor, rows: Sequence[Rows]) -> list[Tensor]:
        """Enqueue the rows of a trainer, one entry for each buffer; return the operations."""
        operations = []
        for queues, values in zip(self._queues.values(), rows, strict=True):
            for number, queue in enumerate(queues):
                entry = [token, *values]
                operations.append(
                    tf.cond(
                        trainer == number,
                        lambda queue=queue, entry=entry: _enqueue(queue, entry),
                        lambda: tf.constant(False),
                    )
                )
        return operations

    @unconverted
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
        store = self._variables.layout.buffers[index].store
        with tf.device(self._variables.stores[store].device):
            empty = self._empty[index]()
            shapes = [tf.TensorShape([None, *part.shape[1:]]) for part in empty]
            taken = [
                tf.while_loop(
                    lambda *_, queue=queue: queue.size() > 0,
                    lambda *rows, queue=queue, trainer=trainer: _take_newer(
                        queue, token, counted[trainer] > 0, rows
                    ),
                    empty,
                    shape_invariants=shapes,
                    parallel_iterations=1,
                )
                for trainer, queue in enumerate(queues)
            ]
            return [tf.concat(parts, 0) for parts in zip(*taken, strict=True)]


def _make_empty(types: Sequence[tf.DType], shapes: Sequence[Sequence[int]]) -> Rows:
    return [tf.zeros(shape, dtype) for dtype, shape in zip(types, shapes, strict=True)]


def _enqueue(queue: TFQueue, entry: list[Tensor]) -> Tensor:
    with tf.control_dependencies([queue.enqueue(entry)]):
        return tf.constant(True)


def _take_newer(
    queue: TFQueue, token: Tensor, is_counted: Tensor, rows: Sequence[Tensor]
) -> list[Tensor]:
    entry_token, *new = queue.dequeue()
    shaped = [tf.ensure_shape(a, [None, *b.shape[1:]]) for a, b in zip(new, rows, strict=True)]
    is_wanted = tf.logical_and(entry_token == token, is_counted)
    return list(tf.cond(is_wanted, lambda: shaped, lambda: list(rows)))
