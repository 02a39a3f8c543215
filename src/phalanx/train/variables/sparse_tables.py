"""Tables that are never read whole: a step looks up some rows, and changes these rows alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.train.variables.flat_layout import Tensor

# Rows are brought to the optimizer in blocks of this size, so that its variables have a fixed one.
_BLOCK = 1024


def mark_table(variable: Any) -> None:
    """Say that a variable is read by looking up rows, and in no other way."""
    variable.is_looked_up = True


def is_table(variable: Any) -> bool:
    """Whether somebody said so."""
    return getattr(variable, "is_looked_up", False) is True


@dataclass
class Lookups:
    """The rows that one step has looked up: from which buffers, by which numbers.

    The rows are what gradients are taken of; together with their numbers they are the gradient of
    the buffer.
    """

    shards: Mapping[int, Sequence[tuple[int, Any]]]
    """By the identity of a model's variable: the pieces that hold its rows, and their buffers."""
    is_remote: bool = False
    """Whether rows have a way to go: then none is sent twice."""
    tape: Any = None
    pieces: list[int] = field(default_factory=list)
    numbers: list[Tensor] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """While this is open, the layers look up here."""
        token = _OPEN.set(self)
        try:
            yield
        finally:
            _OPEN.reset(token)

    def look_up(self, variable: Any, numbers: Tensor) -> Tensor:
        """The rows of a model's variable."""
        flat = tf.reshape(tf.cast(numbers, tf.int64), [-1])
        places = None
        if self.is_remote:
            flat, places = tf.unique(flat)
        rows = self._gather(self.shards[id(variable)], flat)
        if places is not None:
            rows = tf.gather(rows, places)
        return tf.reshape(rows, tf.concat([tf.shape(numbers), rows.shape[1:]], 0))

    def gradients(self, found: Sequence[Tensor], buffers: Mapping[int, Any]) -> dict[int, Tensor]:
        """By piece, from the gradients of `rows`."""
        gradients = {}
        for piece, buffer in buffers.items():
            mine = [place for place, looked_up in enumerate(self.pieces) if looked_up == piece]
            values = [tf.convert_to_tensor(found[place]) for place in mine]
            numbers = [self.numbers[place] for place in mine]
            if not mine:
                values = [tf.zeros([0, *buffer.shape[1:]], buffer.dtype)]
                numbers = [tf.zeros([0], tf.int64)]
            gradients[piece] = tf.IndexedSlices(
                tf.concat(values, 0),
                tf.concat(numbers, 0),
                tf.constant(tuple(buffer.shape), tf.int64),
            )
        return gradients

    def _gather(self, shards: Sequence[tuple[int, Any]], flat: Tensor) -> Tensor:
        if len(shards) == 1:
            return self._gather_one(*shards[0], flat)
        lengths = [int(buffer.shape[0]) for _, buffer in shards]
        starts = tf.constant(np.cumsum([0, *lengths[:-1]]), tf.int64)
        owner = tf.searchsorted(starts, flat, side="right") - 1
        owner = tf.maximum(owner, 0)  # A number below 0 is refused by the first one.
        parts = tf.dynamic_partition(flat - tf.gather(starts, owner), owner, len(shards))
        order = tf.dynamic_partition(tf.range(tf.size(flat)), owner, len(shards))
        rows = [
            self._gather_one(piece, buffer, part)
            for (piece, buffer), part in zip(shards, parts, strict=True)
        ]
        return tf.dynamic_stitch(order, rows)

    def _gather_one(self, piece: int, buffer: Any, numbers: Tensor) -> Tensor:
        rows = tf.gather(buffer, numbers)
        if self.tape is not None:
            self.tape.watch(rows)
        self.pieces.append(piece)
        self.numbers.append(numbers)
        self.rows.append(rows)
        return rows


_OPEN: ContextVar[Lookups | None] = ContextVar("lookups", default=None)


def open_lookups() -> Lookups | None:
    """Those of the step that is being run; None outside of one."""
    return _OPEN.get()


def merge_rows(gradient: Tensor) -> Tensor:
    """The same gradient with each row once; what is no gradient of rows stays as it is."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    numbers, places = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(numbers))
    return tf.IndexedSlices(values, numbers, gradient.dense_shape)


@dataclass(frozen=True)
class RowOptimizer:
    """Updates some rows of a buffer, with any optimizer that treats every element alone.

    The rows, and what the optimizer keeps for them, are copied to a block, updated there, and
    copied back. Rows that a step has not looked up stay as they are, whatever their momentum.
    """

    optimizer: Any
    block: Any
    copies: Sequence[tuple[Any, Any]]
    """A block, and the buffer it is a copy from: the rows, and each of their slots."""
    others: Sequence[tuple[Any, Any]]
    """What the optimizer has once, such as the count of updates; and whose it is."""

    def apply(self, gradient: Tensor) -> None:
        """Update the rows of a gradient that has each row once."""
        numbers, values = gradient.indices, gradient.values
        length = tf.size(numbers)
        # Without any row too, so that the count of updates goes on.
        blocks = tf.maximum((length + _BLOCK - 1) // _BLOCK, 1)

        def update(index: Tensor) -> Tensor:
            begin = index * _BLOCK
            mine = numbers[begin : begin + _BLOCK]
            missing = _BLOCK - tf.size(mine)
            padded = tf.pad(mine, [[0, missing]])
            slopes = tf.pad(values[begin : begin + _BLOCK], [[0, missing], [0, 0]])
            for block, buffer in self.copies:
                block.assign(tf.gather(buffer.value, padded))
            for own, theirs in self.others:
                own.assign(theirs.value)
            self.optimizer.apply([tf.reshape(slopes, self.block.shape)], [self.block])
            for block, buffer in self.copies:
                rows = tf.convert_to_tensor(block.value)[: tf.size(mine)]
                buffer.value.scatter_update(tf.IndexedSlices(rows, mine))
            return index + 1

        tf.while_loop(
            lambda index: index < blocks, lambda index: [update(index)], [0], parallel_iterations=1
        )

    def advance_others(self) -> None:
        """Count the update, where no other weight does."""
        for own, theirs in self.others:
            theirs.assign(own.value)


def make_block(buffer: Any) -> Any:
    """A variable for some rows of a buffer."""
    shape = (_BLOCK, math.prod(buffer.shape[1:]))
    return keras.Variable(np.zeros(shape, buffer.dtype), dtype=buffer.dtype, name=buffer.name)
