"""The index of a growing table: which id has which row, on the host and in its shards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.train.embedding_inputs import hash_values
from phalanx.train.types import Tensor, TFVariable
from phalanx.train.variables.index_shard import EMPTY, GrowthRules, IndexShard
from phalanx.train.variables.row_initializer import RowInitializer
from phalanx.train.variables.table import Table

WAYS = 16
"""How many rows a bucket has: an id is hashed to a bucket, and may have any row of it."""

# Ids begin with one of so many vectors, which an initializer makes once.
_INITIAL_ROWS = 4096


@dataclass(frozen=True)
class TableStatistics:
    """What has happened in a growing table."""

    admitted: int
    """How many ids have got a row, from the beginning of the training."""
    evicted: int
    """How many of them lost it to another id."""
    expired: int
    """How many of them lost it because of `max_age`."""

    @property
    def rows(self) -> int:
        """How many ids have a row now."""
        return self.admitted - self.evicted - self.expired


class TableIndex:
    """Knows which id has which row of a table, how often it was seen, and when.

    An id is hashed to a bucket. A bucket has a line in each of the tables `ids`, `counts` and
    `seen`, and `ways` rows in the table of vectors. All have a fixed size, and are saved, restored
    and exported as tables are. Shards have consecutive buckets: the hash has mixed the ids already.

    Args:
        buckets: The number of buckets.
        ways: How many rows a bucket has.
        shared_rows: How many rows follow those of the buckets, for ids without a row of their own.
        rules: When an id gets a row, and which id loses its row.
        initial: The initializer of the rows, the shape of their table, and its type.
    """

    def __init__(
        self,
        buckets: int,
        ways: int,
        shared_rows: int,
        rules: GrowthRules,
        initial: tuple[Any, tuple[int, ...], str],
    ) -> None:
        self.buckets, self.ways, self.shared_rows, self.rules = buckets, ways, shared_rows, rules
        shape = (buckets, ways * (2 if rules.needs_candidates else 1))
        self.ids = Table(shape, _make_empty, "int64", "ids", trainable=False)
        self.counts = Table(shape, _make_zeros, "int64", "counts", trainable=False)
        self.seen = Table(shape, _make_zeros, "int64", "seen", trainable=False)
        # The number of observed steps, and how many ids were admitted, evicted and expired.
        self.totals = Table((1, 4), _make_zeros, "int64", "totals", trainable=False)
        for table in self.tables:
            table.is_index = table.in_ranges = True
        self._initial = initial
        self._rows: Tensor = None
        self._shards: list[IndexShard] = []

    @property
    def tables(self) -> list[Table]:
        return [*self.split_tables, self.totals]

    @property
    def split_tables(self) -> list[Table]:
        """The tables with a line for each bucket."""
        return [self.ids, self.counts, self.seen]

    @property
    def initial_shape(self) -> tuple[int, ...]:
        """The shape of the vectors that ids begin with."""
        _, shape, _ = self._initial
        return (min(_INITIAL_ROWS, shape[0]), *shape[1:])

    def count_bytes(self, rows: int) -> int:
        """Return about how many bytes a shard has beside so many rows."""
        entries = sum(table.nbytes for table in self.split_tables) // (self.buckets * self.ways)
        size = int(tf.as_dtype(self._initial[2]).size)
        return rows * (entries + 8) + math.prod(self.initial_shape) * size

    def find(self, ids: Tensor) -> Tensor:
        """Return the row of each id, or the one that it shares, from the tables of the host."""
        line = tf.gather(self.ids.value, hash_values(ids, self.buckets))[..., : self.ways]
        is_equal = (line == ids[..., None]) & (ids != EMPTY)[..., None]
        entry = tf.argmax(tf.cast(is_equal, tf.int8), -1)
        rows = hash_values(ids, self.buckets) * self.ways + entry
        return tf.where(tf.reduce_any(is_equal, -1), rows, self.share_rows(ids))

    def share_rows(self, ids: Tensor) -> Tensor:
        """Return the rows that ids get which have none of their own."""
        return self.buckets * self.ways + hash_values(ids, self.shared_rows)

    def make_shard(self, first: int, buckets: int, rows: int) -> IndexShard:
        """Create empty entries for some buckets, on the current device, which has their rows."""
        shape = (buckets, int(self.ids.shape[1]))
        return IndexShard(
            self.rules, self.ways, self.buckets, first,
            ids=_make_variable(_make_empty(shape, "int64")),
            counts=_make_variable(_make_zeros(shape, "int64")),
            seen=_make_variable(_make_zeros(shape, "int64")),
            totals=_make_variable(_make_zeros((1, 4), "int64")),
            admitted_at=_make_variable(_make_zeros((rows,), "int64")),
            changed=make_changes(buckets) if self.ids.tracks_changes else None,
            initial=_make_variable(self._make_initial_rows()),
        )  # fmt: skip

    def attach(self, shards: Sequence[IndexShard]) -> None:
        """Read the totals of these shards from now on; the tables are attached as all others."""
        self._shards = list(shards)

    def push(self, shards: Sequence[IndexShard]) -> None:
        """Copy the totals of the host to shards: the first one has them all."""
        totals = self.totals.value.numpy()
        for number, shard in enumerate(shards):
            shard.totals.assign(totals if number == 0 else totals * [1, 0, 0, 0])

    def pull(self) -> None:
        """Copy the totals of the shards to the host."""
        self.totals.assign(self._sum_totals()[None])

    def statistics(self) -> TableStatistics:
        """Return what has happened, from the shards if there are any."""
        _, admitted, evicted, expired = (int(number) for number in self._sum_totals())
        return TableStatistics(admitted, evicted, expired)

    def release(self) -> None:
        """Forget the shards, which end with the run."""
        if any("/job:ps" in shard.device for shard in self._shards):
            self._shards = []

    def _sum_totals(self) -> Any:
        if not self._shards:
            return self.totals.value.numpy()[0]
        totals = np.concatenate([shard.totals.numpy() for shard in self._shards])
        return np.array([totals[:, 0].max(), *totals[:, 1:].sum(axis=0)])

    def _make_initial_rows(self) -> Tensor:
        """Return the vectors that ids begin with; an initializer draws them only once."""
        if self._rows is None:
            initializer, shape, dtype = self._initial
            made = RowInitializer.make(initializer, shape, dtype)
            length = self.initial_shape[0]
            if made is not None:
                self._rows = made.make_rows(0, min(length, made.block_rows))
            else:
                self._rows = tf.convert_to_tensor(initializer(self.initial_shape, dtype=dtype))
        return self._rows


def make_changes(rows: int) -> TFVariable:
    """Create a variable that notes which of so many rows have changed, on the current device."""
    return _make_variable(tf.zeros([rows], tf.bool))


def _make_variable(value: Tensor) -> TFVariable:
    return tf.Variable(value, trainable=False)


def _make_empty(shape: tuple[int, ...], dtype: str) -> Tensor:
    return tf.fill(shape, tf.constant(EMPTY, dtype))


def _make_zeros(shape: tuple[int, ...], dtype: str) -> Tensor:
    return tf.zeros(shape, dtype)
