"""Sums of sparse gradients: the rows that several trainers add to one update."""

from collections.abc import Sequence

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.types import Tensor, TFQueue
from phalanx.train.variables.device_variables import DeviceVariables

Rows = list[Tensor]
"""Row indices and the gradient of each row; of a growing table, also ids and their counts."""


class RowAccumulator:
    """Collects the sparse gradients of each update, as an accumulator sums the dense ones.

    Each parameter server that holds rows has one queue for all trainers. A trainer enqueues its
    rows before it adds to the dense sums, so that the rows are there when the sums are taken. The
    rows of an update have the order of the trainers, whichever was first.
    """

    def __init__(self, variables: DeviceVariables, trainers: int) -> None:
        self._variables = variables
        self._trainers = trainers
        self._buffers: dict[int, list[int]] = {}
        for index in variables.sparse_gradients():
            self._buffers.setdefault(variables.layout.buffers[index].store, []).append(index)
        self._queues: dict[int, TFQueue] = {}
        for store, indices in self._buffers.items():
            types = [part.dtype for index in indices for part in self._describe(index)]
            with tf.device(variables.stores[store].device):
                self._queues[store] = tf.queue.FIFOQueue(2**20, [tf.int64, tf.int64, *types])

    def _describe(self, index: int) -> list[tf.TensorSpec]:
        """Return the types of the rows of a buffer."""
        buffer = self._variables.layout.buffers[index]
        specs = [tf.TensorSpec([None], tf.int64)]
        specs.append(tf.TensorSpec([None, *buffer.shape[1:]], buffer.dtype))
        if index in self._variables.growing_buffers():
            specs += [tf.TensorSpec([None], tf.int64)] * 2
        return specs

    @unconverted
    def add(self, trainer: Tensor, token: Tensor, rows: Sequence[Rows]) -> list[Tensor]:
        """Enqueue the rows of a trainer, one entry for each buffer; return the operations."""
        by_buffer = dict(zip(self._variables.sparse_gradients(), rows, strict=True))
        operations = []
        for store, queue in self._queues.items():
            parts = [part for index in self._buffers[store] for part in by_buffer[index]]
            operations.append(queue.enqueue([token, tf.cast(trainer, tf.int64), *parts]))
        return operations

    @unconverted
    def take(self, token: Tensor, counted: Tensor) -> dict[int, Rows]:
        """Take the rows that counted trainers added for a token; drop the rows of older tokens.

        Returns the rows by the index of their buffer.
        """
        taken: dict[int, Rows] = {}
        for store, indices in self._buffers.items():
            specs = {index: self._describe(index) for index in indices}
            flat = [spec for each in specs.values() for spec in each]
            with tf.device(self._variables.stores[store].device):
                parts = iter(self._take_all(self._queues[store], flat, token, counted))
            taken |= {index: [next(parts) for _ in each] for index, each in specs.items()}
        return taken

    def _take_all(
        self, queue: TFQueue, specs: Sequence[tf.TensorSpec], token: Tensor, counted: Tensor
    ) -> Rows:
        """Empty the queue of a server; return what is wanted of it, in the order of trainers."""
        arrays = [
            tf.TensorArray(
                spec.dtype, self._trainers + 1, infer_shape=False, element_shape=spec.shape,
                clear_after_read=False,
            )
            for spec in specs
        ]  # fmt: skip
        empty = [tf.zeros([0, *spec.shape[1:]], spec.dtype) for spec in specs]

        def write(number: Tensor, arrays: Sequence[tf.TensorArray], parts: Rows) -> Rows:
            return [array.write(number, part) for array, part in zip(arrays, parts, strict=True)]

        _, *arrays = tf.while_loop(
            lambda number, *_: number <= self._trainers,
            lambda number, *arrays: [number + 1, *write(number, arrays, empty)],
            [tf.constant(0), *arrays],
        )

        def take_one(*arrays: tf.TensorArray) -> Rows:
            entry_token, trainer, *parts = queue.dequeue()
            is_wanted = (entry_token == token) & (counted[trainer] > 0)
            # What is not wanted leaves nothing after the last trainer.
            number = tf.where(is_wanted, tf.cast(trainer, tf.int32), self._trainers)
            shaped = [
                tf.ensure_shape(tf.cond(is_wanted, lambda p=p: p, lambda e=e: e), spec.shape)
                for p, e, spec in zip(parts, empty, specs, strict=True)
            ]
            return write(number, arrays, shaped)

        arrays = tf.while_loop(lambda *_: queue.size() > 0, take_one, arrays, parallel_iterations=1)
        return [array.concat() for array in arrays]
