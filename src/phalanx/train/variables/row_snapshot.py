"""The rows of a shard as they were when a save began, while the training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.types import Tensor, TFFunction, TFVariable

# More parts of kept rows than this are joined to one.
_MOST_PARTS = 8


class RowSnapshot:
    """Keeps the values that rows had when a save began, until the save has read them.

    The training does not wait for a copy of the shard. While a save reads it, each update first
    puts the values of its rows aside, unless they are aside already. The save reads the rows as
    they are, and then replaces those that were put aside by then, which may have changed.

    Args:
        variables: The rows of a shard, and each of their slots, all on one device.
    """

    def __init__(self, variables: Sequence[TFVariable]) -> None:
        self._variables = list(variables)
        self._is_reading = False
        self._lock = threading.Lock()
        self._parts: list[list[Tensor]] = []
        with tf.device(self.device):
            self._is_open = tf.Variable(False, trainable=False)
            self._is_kept = tf.Variable(tf.zeros([self._rows], tf.bool), trainable=False)
            types = [tf.int64, *(variable.dtype for variable in variables)]
            self._queue = tf.queue.FIFOQueue(2**31 - 1, types)
        numbers = tf.TensorSpec([None], tf.int64)
        self._read = [_compile(partial(self._read_and_take, each), numbers) for each in variables]
        rows = [tf.TensorSpec([None, *each.shape[1:]], each.dtype) for each in variables]
        self._restore = [
            _compile(self._restore_rows, each, numbers, numbers, each) for each in rows
        ]
        self._keep = _compile(self.keep, numbers)

    @property
    def device(self) -> str:
        return str(self._variables[0].device)

    @property
    def _rows(self) -> int:
        return int(self._variables[0].shape[0])

    def open(self) -> None:
        """Keep the values that the rows have now; no update may run meanwhile."""
        with tf.device(self.device):
            # An update may have put rows aside after the last save.
            self._read[0](tf.zeros([0], tf.int64))
            self._is_kept.assign(tf.zeros_like(self._is_kept))
            self._is_open.assign(True)
            self._is_open.numpy()
        self._is_reading = True

    def close(self) -> None:
        """Keep nothing any more."""
        self._is_reading = False
        self._parts = []
        with tf.device(self.device):
            self._is_open.assign(False)
            self._read[0](tf.zeros([0], tf.int64))

    @unconverted
    def keep(self, indices: Tensor) -> None:
        """Put rows aside that are about to change; in a graph, on the device of the rows."""

        def put_aside() -> Tensor:
            new = indices[tf.logical_not(tf.gather(self._is_kept, indices))]
            rows = [tf.gather(variable, new) for variable in self._variables]
            with tf.control_dependencies([self._queue.enqueue([new, *rows])]):
                marks = tf.ones_like(new, tf.bool)
                self._is_kept.scatter_update(tf.IndexedSlices(marks, new))
                return tf.constant(True)

        tf.cond(self._is_open, put_aside, lambda: tf.constant(False))

    def keep_all(self, step: int) -> None:
        """Put all rows aside, up to `step` of them at once, before all of them are written."""
        if self._is_reading:
            with tf.device(self.device):
                for begin in range(0, self._rows, step):
                    end = min(begin + step, self._rows)
                    self._keep(tf.range(begin, end, dtype=tf.int64))

    def read(self, variable: TFVariable, indices: Tensor) -> Tensor:
        """Return rows of one of the variables as they were when the snapshot was opened.

        Args:
            variable: The rows themselves, or one of their slots.
            indices: The numbers of the rows in the shard, in ascending order.
        """
        column = next(i for i, each in enumerate(self._variables) if each is variable)
        with self._lock, tf.device(self.device):
            rows, *kept = self._read[column](indices)
            if int(tf.size(kept[0])):
                self._parts.append(kept)
            if len(self._parts) > _MOST_PARTS:
                self._parts = [[tf.concat(parts, 0) for parts in zip(*self._parts, strict=True)]]
            for kept_indices, *values in self._parts:
                rows = self._restore[column](rows, indices, kept_indices, values[column])
            return rows

    def _read_and_take(self, variable: TFVariable, indices: Tensor) -> list[Tensor]:
        """Return rows as they are; then the rows that were put aside until they were read."""
        with tf.device(self.device):
            rows = tf.gather(variable, indices)
            shapes = [[0], *([0, *variable.shape[1:]] for variable in self._variables)]
            kept = [
                tf.TensorArray(dtype, 1, True, infer_shape=False, element_shape=[None, *shape[1:]])
                .write(0, tf.zeros(shape, dtype))
                for dtype, shape in zip(self._queue.dtypes, shapes, strict=True)
            ]  # fmt: skip

            def take(number: Tensor, *kept: tf.TensorArray) -> list[Tensor]:
                taken = self._queue.dequeue()
                return [
                    number + 1,
                    *(part.write(number, new) for part, new in zip(kept, taken, strict=True)),
                ]

            with tf.control_dependencies([rows]):
                _, *kept = tf.while_loop(
                    lambda number, *_: self._queue.size() > 0, take, [tf.constant(1), *kept],
                    parallel_iterations=1,
                )  # fmt: skip
            return [rows, *(part.concat() for part in kept)]

    def _restore_rows(self, rows: Tensor, indices: Tensor, kept: Tensor, values: Tensor) -> Tensor:
        """Replace those of the rows that were put aside."""
        with tf.device(self.device):
            places = tf.searchsorted(indices, kept)
            # Rows after the last one are found at the end, which has no number of a row.
            is_read = tf.gather(tf.pad(indices, [[0, 1]], constant_values=-1), places) == kept
            places, values = places[is_read], values[is_read]
            return tf.tensor_scatter_nd_update(rows, places[:, None], values)


def _compile(function: Callable[..., object], *signature: tf.TensorSpec) -> TFFunction:
    return tf.function(function, input_signature=signature, autograph=False)
