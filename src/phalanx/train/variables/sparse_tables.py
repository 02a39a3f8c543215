"""Sparse tables: variables of which a step reads some rows, and updates these rows alone."""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

import keras
import numpy as np
import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.types import Array, GradientTape, KerasVariable, Optimizer, Tensor
from phalanx.train.variables.row_spread import spread_rows
from phalanx.train.variables.table import Table

# The optimizer gets rows in blocks of this size, so that its variables have a fixed shape.
_BLOCK_ROWS = 1024


@unconverted
def is_table(variable: KerasVariable) -> bool:
    """Return whether layers read a variable by looking up rows, and in no other way."""
    return isinstance(variable, Table)


def is_index(variable: KerasVariable) -> bool:
    """Return whether a variable is a part of the index of a growing table."""
    return isinstance(variable, Table) and variable.is_index


@dataclass
class Lookups:
    """The rows that one step has looked up, the buffers they are from, and their indices.

    Gradients are taken of the rows; rows and indices together are the sparse gradient of a buffer.
    """

    shards: Mapping[int, Sequence[tuple[int, Tensor]]]
    """By the id of a model's variable: the index and the content of each buffer with its rows."""
    is_remote: bool = False
    """Whether rows are sent over the network: then each row is sent once."""
    tape: GradientTape = None
    buffers: list[int] = field(default_factory=list)
    indices: list[Tensor] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    sightings: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    """By the id of a growing table's variable: ids that were looked up, and how often."""

    @contextlib.contextmanager
    def activate(self) -> Iterator[None]:
        """Make layers look up rows here, for the time of the `with` block."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def look_up(self, variable: KerasVariable, indices: Tensor) -> Tensor:
        """Return rows of a model's variable."""
        flat = _check_range(variable, tf.reshape(tf.cast(indices, tf.int64), [-1]))
        if self.is_remote:
            unique, positions = tf.unique(flat)
            rows = tf.gather(self._gather(self._find_shards(variable), unique), positions)
        else:
            rows = self._gather(self._find_shards(variable), flat)
        return tf.reshape(rows, tf.concat([tf.shape(indices), rows.shape[1:]], 0))

    def note_ids(self, variable: KerasVariable, ids: Tensor, counts: Tensor) -> None:
        """Note that ids of a growing table were looked up, and how often each of them was."""
        self.sightings.setdefault(id(variable), []).append((ids, counts))

    def merge_sightings(self, variable: KerasVariable) -> tuple[Tensor, Tensor]:
        """Return the ids that all lookups in a growing table have noted, each of them once."""
        noted = self.sightings.get(id(variable), [])
        if len(noted) == 1:
            return noted[0]
        empty = tf.zeros([0], tf.int64)
        ids, positions = tf.unique(tf.concat([empty, *(each for each, _ in noted)], 0))
        counts = tf.concat([empty, *(each for _, each in noted)], 0)
        return ids, tf.math.unsorted_segment_sum(counts, positions, tf.size(ids))

    def _find_shards(self, variable: KerasVariable) -> Sequence[tuple[int, Tensor]]:
        return self.shards[id(variable)]

    @unconverted
    def gradients(
        self, row_gradients: Sequence[Tensor], buffers: Mapping[int, Tensor]
    ) -> dict[int, Tensor]:
        """Return the sparse gradient of each buffer, from the gradients of `rows`."""
        gradients = {}
        for index, buffer in buffers.items():
            lookups = [i for i, looked_up in enumerate(self.buffers) if looked_up == index]
            values = [tf.convert_to_tensor(row_gradients[i]) for i in lookups]
            indices = [self.indices[i] for i in lookups]
            if not lookups:
                values = [tf.zeros([0, *buffer.shape[1:]], buffer.dtype)]
                indices = [tf.zeros([0], tf.int64)]
            gradients[index] = tf.IndexedSlices(
                tf.concat(values, 0),
                tf.concat(indices, 0),
                tf.constant(tuple(buffer.shape), tf.int64),
            )
        return gradients

    def _gather(self, shards: Sequence[tuple[int, Tensor]], flat: Tensor) -> Tensor:
        if len(shards) == 1:
            return self._gather_shard(*shards[0], flat)
        spans = spread_rows(tuple(int(buffer.shape[0]) for _, buffer in shards))
        starts = tf.constant([span.start for span in spans], tf.int64)
        span = tf.searchsorted(starts, flat, side="right") - 1
        owner = tf.gather(tf.constant([span.shard for span in spans]), span)
        offset = tf.gather(tf.constant([s.begin - s.start for s in spans], tf.int64), span)
        parts = tf.dynamic_partition(flat + offset, owner, len(shards))
        order = tf.dynamic_partition(tf.range(tf.size(flat)), owner, len(shards))
        rows = [
            self._gather_shard(index, buffer, part)
            for (index, buffer), part in zip(shards, parts, strict=True)
        ]
        return tf.dynamic_stitch(order, rows)

    def _gather_shard(self, buffer_index: int, buffer: Tensor, indices: Tensor) -> Tensor:
        rows = tf.gather(buffer, indices)
        if self.tape is not None:
            self.tape.watch(rows)
        self.buffers.append(buffer_index)
        self.indices.append(indices)
        self.rows.append(rows)
        return rows


@dataclass
class TracedLookups(Lookups):
    """The lookups of a step that is only traced: no table has to exist anywhere."""

    shards: Mapping[int, Sequence[tuple[int, Tensor]]] = field(default_factory=dict)
    tables: list[int] = field(default_factory=list)
    """The id of the variable that each of `rows` was looked up in."""

    def _find_shards(self, variable: KerasVariable) -> Sequence[tuple[int, Tensor]]:
        self.tables.append(id(variable))
        return [(-1, tf.zeros(variable.shape, variable.dtype))]


_CURRENT: ContextVar[Lookups | None] = ContextVar("lookups", default=None)


def current_lookups() -> Lookups | None:
    """Return the lookups of the step that is running; None outside of a step."""
    return _CURRENT.get()


def _check_range(variable: KerasVariable, indices: Tensor) -> Tensor:
    """Return indices that fail if the variable has no such rows: a shard sees only its own."""
    rows = int(variable.shape[0])
    is_row = tf.logical_and(indices >= 0, indices < rows)
    message = (
        f"{variable.path} has the rows 0 to {rows - 1}, and a step looks up indices outside of "
        "them; set num_oov_indices or hash_inputs, or correct the data. Smallest and largest index:"
    )
    found = [message, tf.reduce_min(indices), tf.reduce_max(indices)]
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(is_row), found)]):
        return tf.identity(indices)


@unconverted
def make_sparse(gradient: Tensor) -> Tensor:
    """Return a gradient as a `tf.IndexedSlices` of one type; a dense one has each row once."""
    if not isinstance(gradient, tf.IndexedSlices):
        shape = tf.shape(gradient, tf.int64)
        return tf.IndexedSlices(gradient, tf.range(shape[0]), shape)
    rows = [-1, *gradient.values.shape[1:]]
    shape = tf.cast(gradient.dense_shape, tf.int64)
    return tf.IndexedSlices(
        tf.reshape(gradient.values, rows), tf.reshape(tf.cast(gradient.indices, tf.int64), [-1]),
        shape,
    )  # fmt: skip


@unconverted
def merge_rows(gradient: Tensor) -> Tensor:
    """Sum the entries of a sparse gradient that are for the same row; keep a dense one as it is."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    indices, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


@dataclass(frozen=True)
class RowOptimizer:
    """Updates some rows of a buffer, with any optimizer that treats each element separately.

    The rows and their slots are copied to a block, updated there, and copied back. Rows that a step
    has not looked up do not change, whatever their momentum.
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

    def apply(self, gradient: Tensor) -> None:
        """Update the rows of a gradient that holds each row once."""
        indices, values = gradient.indices, gradient.values
        length = tf.size(indices)
        # One block runs even without rows, so that the iteration count advances.
        blocks = tf.maximum((length + _BLOCK_ROWS - 1) // _BLOCK_ROWS, 1)

        def update(number: Tensor) -> Tensor:
            begin = number * _BLOCK_ROWS
            rows_in_block = indices[begin : begin + _BLOCK_ROWS]
            missing = _BLOCK_ROWS - tf.size(rows_in_block)
            padded = tf.pad(rows_in_block, [[0, missing]])
            gradients = tf.pad(values[begin : begin + _BLOCK_ROWS], [[0, missing], [0, 0]])
            for block, buffer in self.copies:
                block.assign(tf.gather(buffer.value, padded))
            for local, stored in self.shared:
                local.assign(stored.value)
            self.optimizer.apply([tf.reshape(gradients, self.block.shape)], [self.block])
            for block, buffer in self.copies:
                rows = tf.convert_to_tensor(block.value)[: tf.size(rows_in_block)]
                buffer.value.scatter_update(tf.IndexedSlices(rows, rows_in_block))
            return number + 1

        tf.while_loop(
            lambda number: number < blocks, lambda number: [update(number)], [0],
            parallel_iterations=1,
        )  # fmt: skip
        if self.is_own:
            self.advance_shared()

    def reset(self, indices: Tensor, rows: Tensor) -> None:
        """Give rows new values, and their slots the initial ones."""
        (_, weight), *slots = self.copies
        weight.value.scatter_update(tf.IndexedSlices(rows, indices))
        for (_, slot), initial in zip(slots, self.initial_slots, strict=True):
            values = tf.repeat(tf.constant(initial), tf.size(indices), 0)
            slot.value.scatter_update(tf.IndexedSlices(values, indices))

    def advance_shared(self) -> None:
        """Write the shared variables back, where no dense weight of the store advances them."""
        for local, stored in self.shared:
            stored.assign(local.value)


def make_block(buffer: KerasVariable) -> KerasVariable:
    """Create a variable for some rows of a buffer."""
    shape = (_BLOCK_ROWS, math.prod(buffer.shape[1:]))
    return keras.Variable(np.zeros(shape, buffer.dtype), dtype=buffer.dtype, name=buffer.name)
