"""RowOptimizer: an optimizer of Keras that updates some rows of a buffer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf

from phalanx.train.types import Array, KerasVariable, Optimizer, Tensor, TFVariable
from phalanx.train.variables.index_shard import note_changes
from phalanx.train.variables.row_snapshot import RowSnapshot
from phalanx.train.variables.row_transfer import chunk_rows
from phalanx.train.variables.sparse_tables import merge_rows

# The optimizer gets rows in blocks of this size, so that its variables have a fixed shape.
_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class RowAverages:
    """The moving averages of the rows in a block.

    While a row does not change, its average comes closer to it by the same factor in every step.
    """

    optimizer: Optimizer
    row: KerasVariable
    average: KerasVariable
    step: KerasVariable
    """How many steps the optimizer had made when the average of each row was computed."""

    def catch_up(self) -> None:
        """Compute the averages for the steps until now, in which the rows did not change."""
        last, now = self.step.value, self.optimizer._iterations.value
        momentum = tf.constant(self.optimizer.ema_momentum, self.row.dtype)
        factor = momentum ** tf.cast(tf.cast(now, tf.int64) - last, self.row.dtype)
        # In its first step, Keras begins with the weights as they are then.
        first = self.optimizer.gradient_accumulation_steps or 1
        factor = tf.where(last < first, tf.zeros_like(factor), factor)
        row = tf.convert_to_tensor(self.row.value)
        self.average.assign(row + factor * (tf.convert_to_tensor(self.average.value) - row))

    def note(self) -> None:
        """Note that the averages are those after the last step that the optimizer has counted."""
        now = tf.cast(self.optimizer._iterations.value, tf.int64)
        self.step.assign(tf.fill(self.step.shape, now))


@dataclass(frozen=True)
class WaitingRows:
    """The rows of a buffer that have gradients since the last update, if it is not every step."""

    optimizer: Optimizer
    iterations: KerasVariable
    """How many steps the optimizer of the store has made."""
    gradients: KerasVariable
    """The sum of the gradients of each row since the last update."""
    is_waiting: TFVariable

    def is_update(self) -> Tensor:
        """Whether this step updates the rows."""
        steps = self.optimizer.gradient_accumulation_steps
        return (self.iterations.value + 1) % steps == 0

    def add(self, gradient: Tensor) -> Tensor:
        """Note the rows of a gradient; in an update, add all rows that wait for it."""
        marks = tf.ones_like(gradient.indices, tf.bool)
        self.is_waiting.scatter_update(tf.IndexedSlices(marks, gradient.indices))
        others = tf.cond(
            self.is_update(),
            lambda: tf.where(self.is_waiting)[:, 0],
            lambda: tf.zeros([0], tf.int64),
        )
        zeros = tf.zeros([tf.size(others), *gradient.values.shape[1:]], gradient.values.dtype)
        return merge_rows(
            tf.IndexedSlices(
                tf.concat([gradient.values, zeros], 0),
                tf.concat([gradient.indices, others], 0),
                gradient.dense_shape,
            )
        )

    def forget(self) -> None:
        """After an update, no row waits any more."""
        tf.cond(
            self.is_update(),
            lambda: self.is_waiting.assign(tf.zeros_like(self.is_waiting)),
            lambda: tf.identity(self.is_waiting),
        )

    def find(self) -> None:
        """Find the rows that wait in a state that was restored."""
        sums = self.gradients.value
        rows, step = int(sums.shape[0]), chunk_rows(sums)
        for begin in range(0, rows, step):
            numbers = tf.range(begin, min(begin + step, rows))
            found = tf.reduce_any(tf.gather(sums, numbers) != 0, 1)
            self.is_waiting.scatter_update(tf.IndexedSlices(found, numbers))


@dataclass(frozen=True)
class RowOptimizer:
    """Updates some rows of a buffer, with any optimizer that treats each element separately.

    The rows and their slots are copied to a block, updated there, and copied back. Rows that a step
    has not looked up do not change, whatever their momentum.

    The moving average of a row (`use_ema`) changes in every step, also when the row does not. It is
    computed for all these steps at once when the row is looked up again, and at the end. With
    `gradient_accumulation_steps`, an update is of all rows that were looked up since the last one.
    """

    optimizer: Optimizer
    block: KerasVariable
    copies: Sequence[tuple[KerasVariable, KerasVariable]]
    """A block, and the buffer that it copies: for the rows, and for each of their slots."""
    shared: Sequence[tuple[KerasVariable, KerasVariable]]
    """The shared variables of this optimizer, and those of the optimizer of the store."""
    initial_slots: Sequence[Array] = ()
    """The first row of each slot in `copies`, as the optimizer initializes it."""
    is_own: bool = False
    """Whether the table has this optimizer alone, so that no dense weight advances it."""
    changed: TFVariable = None
    """Which rows of the buffer have changed, if that is noted."""
    snapshot: RowSnapshot | None = None
    """Keeps rows and slots for a save in the background, if the table is large."""
    averages: RowAverages | None = None
    waiting: WaitingRows | None = None

    def apply(self, gradient: Tensor) -> None:
        """Update the rows of a gradient that holds each row once."""
        if self.waiting is not None:
            gradient = self.waiting.add(gradient)
        indices, values = gradient.indices, gradient.values
        self._note_update(indices)
        length = tf.size(indices)
        # One block runs even without rows, so that the iteration count advances.
        blocks = tf.maximum((length + _BLOCK_ROWS - 1) // _BLOCK_ROWS, 1)

        def update(number: Tensor) -> Tensor:
            begin = number * _BLOCK_ROWS
            rows_in_block = indices[begin : begin + _BLOCK_ROWS]
            missing = _BLOCK_ROWS - tf.size(rows_in_block)
            padded = tf.pad(rows_in_block, [[0, missing]])
            gradients = tf.pad(values[begin : begin + _BLOCK_ROWS], [[0, missing], [0, 0]])
            self._load(padded)
            self._load_shared()
            if self.averages is not None:
                self.averages.catch_up()
            self.optimizer.apply([tf.reshape(gradients, self.block.shape)], [self.block])
            if self.averages is not None:
                self.averages.note()
            self._store(rows_in_block)
            return number + 1

        tf.while_loop(
            lambda number: number < blocks, lambda number: [update(number)], [0],
            parallel_iterations=1,
        )  # fmt: skip
        if self.waiting is not None:
            self.waiting.forget()
        if self.is_own:
            self.advance_shared()

    def finish_averages(self) -> None:
        """Replace all rows by their averages, if they have any."""
        if self.averages is not None:
            self._load_shared()
            rows = int(self.copies[0][1].shape[0])
            for begin in range(0, rows, _BLOCK_ROWS):
                indices = tf.range(begin, min(begin + _BLOCK_ROWS, rows), dtype=tf.int64)
                self._note_update(indices)
                padded = tf.pad(indices, [[0, _BLOCK_ROWS - len(indices)]])
                self._load(padded)
                self.averages.catch_up()
                self.averages.note()
                self.block.assign(self.averages.average.value)
                self._store(indices)

    def _load(self, indices: Tensor) -> None:
        for block, buffer in self.copies:
            block.assign(tf.gather(buffer.value, indices))

    def _load_shared(self) -> None:
        for local, stored in self.shared:
            local.assign(stored.value)

    def _store(self, indices: Tensor) -> None:
        for block, buffer in self.copies:
            rows = tf.convert_to_tensor(block.value)[: tf.size(indices)]
            buffer.value.scatter_update(tf.IndexedSlices(rows, indices))

    def reset(self, indices: Tensor, rows: Tensor) -> None:
        """Give rows new values, and their slots the initial ones."""
        (_, weight), *slots = self.copies
        self._note_update(indices)
        weight.value.scatter_update(tf.IndexedSlices(rows, indices))
        for (_, slot), initial in zip(slots, self.initial_slots, strict=True):
            values = tf.repeat(tf.constant(initial), tf.size(indices), 0)
            slot.value.scatter_update(tf.IndexedSlices(values, indices))

    def _note_update(self, indices: Tensor) -> None:
        note_changes(self.changed, indices)
        if self.snapshot is not None:
            self.snapshot.keep(indices)

    def advance_shared(self) -> None:
        """Write the shared variables back, where no dense weight of the store advances them."""
        for local, stored in self.shared:
            stored.assign(local.value)


def make_block(buffer: KerasVariable) -> KerasVariable:
    """Create a variable for some rows of a buffer."""
    shape = (_BLOCK_ROWS, math.prod(buffer.shape[1:]))
    return keras.Variable(np.zeros(shape, buffer.dtype), dtype=buffer.dtype, name=buffer.name)
