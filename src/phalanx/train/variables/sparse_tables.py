"""Sparse tables: variables of which a step reads some rows, and updates these rows alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.embedding_inputs import hash_values
from phalanx.train.types import (
    GradientTape,
    KerasVariable,
    Tensor,
)
from phalanx.train.variables.described_variable import stand_in
from phalanx.train.variables.index_shard import IndexShard, Sightings
from phalanx.train.variables.packing import (
    pack_indices,
    pack_rows,
    unpack_indices,
    unpack_rows,
)
from phalanx.train.variables.row_spread import spread_rows
from phalanx.train.variables.table import Table

if TYPE_CHECKING:
    from phalanx.train.variables.table_index import TableIndex


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
    indexes: Mapping[int, IndexShard] = field(default_factory=dict)
    """By the index of a buffer: which ids have its rows, if they belong to a growing table."""
    buffers: list[int] = field(default_factory=list)
    indices: list[Tensor] = field(default_factory=list)
    rows: list[Tensor] = field(default_factory=list)
    keeps: dict[int, Tensor] = field(default_factory=dict)
    """By the position in `rows`: which of the rows have a gradient, if not all of them have."""
    sightings: dict[int, list[Sightings]] = field(default_factory=dict)
    """By the index of a buffer: ids of a growing table that were looked up there."""

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

    def look_up_all(self, pairs: Sequence[tuple[KerasVariable, Tensor]]) -> list[Tensor]:
        """Return rows of several variables, each with its indices.

        Where rows are sent over the network, those of all variables on one server travel together.
        """
        if not self.is_remote or len(pairs) < 2:
            return [self.look_up(variable, indices) for variable, indices in pairs]
        shards = [self._find_shards(variable) for variable, _ in pairs]
        wanted: dict[tuple[str, Any], list[_Wanted]] = {}
        positions, orders = [], []
        for number, (variable, indices) in enumerate(pairs):
            flat = _check_range(variable, tf.reshape(tf.cast(indices, tf.int64), [-1]))
            unique, places = tf.unique(flat)
            parts, order = _split_by_shard(shards[number], unique)
            for part, (index, buffer) in enumerate(shards[number]):
                key = (buffer.device, buffer.dtype)
                wanted.setdefault(key, []).append(_Wanted(number, part, index, buffer, parts[part]))
            positions.append(places)
            orders.append(order)
        found: dict[tuple[int, int], Tensor] = {}
        for (device, _), requests in wanted.items():
            for request, rows in zip(requests, _fetch(device, requests), strict=True):
                self._note_rows(request.buffer_index, request.rows, rows)
                found[request.number, request.part] = rows
        results = []
        for number, (_, indices) in enumerate(pairs):
            parts = [found[number, part] for part in range(len(shards[number]))]
            unique_rows = parts[0] if len(parts) == 1 else tf.dynamic_stitch(orders[number], parts)
            rows = tf.gather(unique_rows, positions[number])
            shape = tf.concat([tf.shape(indices), rows.shape[1:]], 0)
            results.append(tf.reshape(rows, shape))
        return results

    def look_up_ids(self, table: Table, ids: Tensor, is_counted: Tensor | None = None) -> Tensor:
        """Return rows of a growing table, and note which ids were looked up, and how often.

        Args:
            table: The growing table.
            ids: The ids. One without a row gets a row that it shares with others.
            is_counted: Which of them may get a row; all, if not given.
        """
        assert table.index is not None
        flat = tf.reshape(ids, [-1])
        unique, positions, counts = tf.unique_with_counts(flat, tf.int64)
        if is_counted is not None:
            counted = tf.cast(tf.reshape(is_counted, [-1]), tf.int64)
            counts = tf.math.unsorted_segment_sum(counted, positions, tf.size(unique))
        shards = self._find_shards(table)
        if len(shards) == 1:
            rows = self._look_up_alone(shards[0], table.index, unique, counts, positions)
        else:
            rows = self._look_up_spread(shards, table.index, unique, counts)
            rows = tf.gather(rows, positions)
        return tf.reshape(rows, tf.concat([tf.shape(ids), rows.shape[1:]], 0))

    def _look_up_alone(
        self,
        shard: tuple[int, Tensor],
        index: TableIndex,
        ids: Tensor,
        counts: Tensor,
        positions: Tensor,
    ) -> Tensor:
        """Look up ids in the only shard; return the row of the id at each of the positions."""
        buffer_index, buffer = shard
        part = self.indexes[buffer_index]
        with tf.device(part.device):
            self._note(buffer_index, ids, counts)
            found, is_found = part.find(ids)
            found = tf.where(is_found, found, index.share_rows(ids))
            if not self.is_remote:
                # Sums over positions would be made here, and once more for the whole gradient.
                return self._gather_shard(buffer_index, buffer, tf.gather(found, positions))
            rows = self._gather_shard(buffer_index, buffer, found)
        return tf.gather(rows, positions)

    def _look_up_spread(
        self,
        shards: Sequence[tuple[int, Tensor]],
        index: TableIndex,
        ids: Tensor,
        counts: Tensor,
    ) -> Tensor:
        """Look up ids where their bucket is. The last shard has the rows that ids share.

        An id without a row is known only after the answer. So the row that it would share is looked
        up at the same time for every id, and has a gradient only if an id was without a row.
        """
        firsts = tf.constant([self.indexes[number].first for number, _ in shards], tf.int64)
        buckets = hash_values(ids, index.buckets)
        owner = tf.searchsorted(firsts, buckets, side="right") - 1
        parts = tf.dynamic_partition(ids, owner, len(shards))
        counted = tf.dynamic_partition(counts, owner, len(shards))
        places = tf.dynamic_partition(tf.range(tf.size(ids)), owner, len(shards))
        own_rows, own_places = [], []
        for number, (buffer_index, buffer) in enumerate(shards):
            part = self.indexes[buffer_index]
            with tf.device(part.device):
                self._note(buffer_index, parts[number], counted[number])
                found, is_found = part.find(parts[number])
                rows = self._gather_shard(buffer_index, buffer, found[is_found])
            own_rows.append(rows)
            own_places.append(places[number][is_found])
        own = tf.concat(own_places, 0)[:, None]
        has_row = tf.scatter_nd(own, tf.ones_like(own[:, 0]), tf.shape(ids))
        shared, position = tf.unique(hash_values(ids, index.shared_rows))
        is_used = tf.math.unsorted_segment_min(has_row, position, tf.size(shared)) == 0
        buffer_index, buffer = shards[-1]
        first = self.indexes[buffer_index].own_rows
        self.keeps[len(self.rows)] = is_used
        shared_rows = self._gather_shard(buffer_index, buffer, first + shared)
        result = tf.gather(shared_rows, position)
        return tf.tensor_scatter_nd_update(result, own, tf.concat(own_rows, 0))

    def _note(self, buffer_index: int, ids: Tensor, counts: Tensor) -> None:
        if self.tape is None:
            return
        # The clock is read first: a row that is given away from now on counts as changed.
        clock = self.indexes[buffer_index].read_clock()
        self.sightings.setdefault(buffer_index, []).append(Sightings(ids, counts, clock))

    @unconverted
    def list_sightings(self) -> list[Sightings]:
        """Return the ids that were looked up in each buffer of a growing table."""
        return [Sightings.add(self.sightings.get(index, [])) for index in self.indexes]

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
            values = [self._keep(i, tf.convert_to_tensor(row_gradients[i])) for i in lookups]
            indices = [self._keep(i, self.indices[i]) for i in lookups]
            if not lookups:
                values = [tf.zeros([0, *buffer.shape[1:]], buffer.dtype)]
                indices = [tf.zeros([0], tf.int64)]
            gradients[index] = tf.IndexedSlices(
                tf.concat(values, 0),
                tf.concat(indices, 0),
                tf.constant(tuple(buffer.shape), tf.int64),
            )
        return gradients

    def _keep(self, lookup: int, values: Tensor) -> Tensor:
        return values[self.keeps[lookup]] if lookup in self.keeps else values

    def _gather(self, shards: Sequence[tuple[int, Tensor]], flat: Tensor) -> Tensor:
        if len(shards) == 1:
            return self._gather_shard(*shards[0], flat)
        parts, order = _split_by_shard(shards, flat)
        rows = [
            self._gather_shard(index, buffer, part)
            for (index, buffer), part in zip(shards, parts, strict=True)
        ]
        return tf.dynamic_stitch(order, rows)

    def _gather_shard(self, buffer_index: int, buffer: Tensor, indices: Tensor) -> Tensor:
        rows = tf.gather(buffer, indices)
        self._note_rows(buffer_index, indices, rows)
        return rows

    def _note_rows(self, buffer_index: int, indices: Tensor, rows: Tensor) -> None:
        if self.tape is not None:
            self.tape.watch(rows)
        self.buffers.append(buffer_index)
        self.indices.append(indices)
        self.rows.append(rows)


class _Wanted(NamedTuple):
    """The rows of one buffer that a lookup of many variables needs."""

    number: int
    """The position of the variable among those that are looked up."""
    part: int
    """The position of the buffer among those of the variable."""
    buffer_index: int
    buffer: Tensor
    rows: Tensor


def _split_by_shard(
    shards: Sequence[tuple[int, Tensor]], flat: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the rows of indices in each shard, and the positions of these indices."""
    if len(shards) == 1:
        return [flat], [tf.range(tf.size(flat))]
    spans = spread_rows(tuple(int(buffer.shape[0]) for _, buffer in shards))
    starts = tf.constant([span.start for span in spans], tf.int64)
    span = tf.searchsorted(starts, flat, side="right") - 1
    owner = tf.gather(tf.constant([span.shard for span in spans]), span)
    offset = tf.gather(tf.constant([s.begin - s.start for s in spans], tf.int64), span)
    parts = tf.dynamic_partition(flat + offset, owner, len(shards))
    return parts, tf.dynamic_partition(tf.range(tf.size(flat)), owner, len(shards))


def _fetch(device: str, requests: Sequence[_Wanted]) -> list[Tensor]:
    """Return rows of several buffers on one device: one message there, and one back."""
    packed = pack_indices([request.rows for request in requests])
    with tf.device(device):
        parts = unpack_indices(tf.identity(packed), len(requests))
        pairs = zip(requests, parts, strict=True)
        rows = pack_rows([tf.gather(request.buffer, part) for request, part in pairs])
    shapes = [tuple(request.buffer.shape[1:]) for request in requests]
    lengths = [tf.size(request.rows) for request in requests]
    return unpack_rows(rows, lengths, shapes)


@dataclass
class TracedLookups(Lookups):
    """The lookups of a step that is only traced: no described variable has to exist anywhere."""

    shards: Mapping[int, Sequence[tuple[int, Tensor]]] = field(default_factory=dict)
    tables: list[int] = field(default_factory=list)
    """The id of the variable that each of `rows` was looked up in."""
    values: dict[int, Tensor] = field(default_factory=dict)
    """By the id of a described variable: what stands for its value."""
    needs_variables: bool = False
    """Whether the step takes gradients of variables itself, so that nothing can stand for them."""

    @contextlib.contextmanager
    def activate(self) -> Iterator[None]:
        stands_in = contextlib.nullcontext() if self.needs_variables else stand_in(self.read)
        with super().activate(), stands_in:
            yield

    def read(self, variable: KerasVariable) -> Tensor:
        """Return a tensor that stands for the value of a variable without a host copy."""
        value = self.values.get(id(variable))
        return tf.zeros(variable.shape, variable._dtype) if value is None else value

    def _find_shards(self, variable: KerasVariable) -> Sequence[tuple[int, Tensor]]:
        self.tables.append(id(variable))
        return [(-1, tf.zeros(variable.shape, variable.dtype))]

    def look_up_ids(self, table: Table, ids: Tensor, is_counted: Tensor | None = None) -> Tensor:
        return self.look_up(table, tf.zeros_like(ids))


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
