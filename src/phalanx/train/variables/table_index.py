"""The index of a growing table: which id has which row, and who gets a row next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.train.embedding_inputs import hash_values
from phalanx.train.types import Tensor
from phalanx.train.variables.row_initializer import RowInitializer
from phalanx.train.variables.table import Table

EMPTY = -(2**63)
"""The id of an entry without an id. No id of this value ever gets a row."""

EVICTIONS = ("oldest", "rarest")
WAYS = 16
"""How many rows a bucket has: an id is hashed to a bucket, and may have any row of it."""

# Ids begin with one of so many vectors, which an initializer makes once.
_INITIAL_ROWS = 4096
_SWEEPS_PER_AGE = 8


@dataclass(frozen=True)
class GrowthRules:
    """When an id gets a row, and which id loses its row."""

    min_count: int = 1
    max_age: int | None = None
    evict: str = "oldest"

    @property
    def needs_candidates(self) -> bool:
        """Whether ids are counted that have no row."""
        return self.min_count > 1 or self.evict == "rarest"


@dataclass(frozen=True)
class TableStatistics:
    """What has happened in a growing table."""

    rows: int
    """How many ids have a row now."""
    admitted: int
    """How many ids have got a row, from the beginning of the training."""
    evicted: int
    """How many of them lost it to another id."""
    expired: int
    """How many of them lost it because of `max_age`."""


class TableIndex:
    """Finds the rows of ids, counts ids, and gives the rows of a table to those that qualify.

    An id is hashed to a bucket. The entries of a bucket are ids, how often each was seen, and when
    it was seen last. The first entries of a bucket have a row each; the ids of the others are
    candidates, which are only counted. All entries are tables of a fixed size, so that they are
    saved, restored and exported as tables are.
    """

    def __init__(self, buckets: int, ways: int, rules: GrowthRules) -> None:
        self.buckets, self.ways, self.rules = buckets, ways, rules
        entries = ways * (2 if rules.needs_candidates else 1)
        shape = (buckets, entries)
        self.ids = Table(shape, _make_empty, "int64", "ids", trainable=False)
        self.counts = Table(shape, _make_zeros, "int64", "counts", trainable=False)
        self.seen = Table(shape, _make_zeros, "int64", "seen", trainable=False)
        # The number of observed steps, and how many ids were admitted, evicted and expired.
        self.totals = Table((1, 4), _make_zeros, "int64", "totals", trainable=False)
        for table in self.tables:
            table.is_index = True

    @property
    def tables(self) -> list[Table]:
        return [self.ids, self.counts, self.seen, self.totals]

    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row of each id, and whether it has one; a vector of ids is expected."""
        buckets = hash_values(ids, self.buckets)
        entries = tf.gather(self.ids.value, buckets)[:, : self.ways]
        entry, is_found = _match(entries, ids)
        return buckets * self.ways + entry, is_found

    def observe(self, ids: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Count the ids of a step, each of which is given once, and admit those that qualify.

        Returns:
            The ids that got a row, and their rows, which still have the values of earlier ids.
        """
        totals = self.totals.value
        now = totals[0, 0] + 1
        is_id = ids != EMPTY
        ids, counts = ids[is_id], counts[is_id]
        buckets = hash_values(ids, self.buckets)
        entry, is_found = _match(tf.gather(self.ids.value, buckets), ids)
        places = tf.stack([buckets, entry], 1)
        counts += tf.where(is_found, tf.gather_nd(self.counts.value, places), 0)
        self._write(places[is_found], ids[is_found], counts[is_found], now)

        has_row = is_found & (entry < self.ways)
        wants = ~has_row & (counts >= self.rules.min_count)
        new_ids, rows, evicted, is_admitted = self._admit(ids, buckets, counts, wants, now)
        if self.rules.needs_candidates:
            left = is_admitted & is_found
            self._clear(places[left])
            self._add_candidates(ids, buckets, counts, ~is_found & ~is_admitted, now)
        expired = self._expire(now)
        admitted = tf.size(new_ids, tf.int64)
        totals.assign_add([[tf.constant(1, tf.int64), admitted, evicted, expired]])
        return new_ids, rows

    def statistics(self) -> TableStatistics:
        _, admitted, evicted, expired = (int(n) for n in self.totals.value.numpy()[0])
        held = tf.reduce_sum(tf.cast(self.ids.value[:, : self.ways] != EMPTY, tf.int64))
        return TableStatistics(int(held), admitted, evicted, expired)

    def _admit(
        self, ids: Tensor, buckets: Tensor, counts: Tensor, wants: Tensor, now: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Give rows to ids; return these ids, their rows, the number of evictions, and a mask."""
        asking = _order_requests(ids, buckets, counts, wants)
        of_asking, of_counts = tf.gather(buckets, asking), tf.gather(counts, asking)
        held = tf.gather(self.ids.value, of_asking)[:, : self.ways]
        if self.rules.evict == "rarest":
            values = tf.gather(self.counts.value, of_asking)[:, : self.ways]
            may_leave = values < of_counts[:, None]
        else:
            values = tf.gather(self.seen.value, of_asking)[:, : self.ways]
            may_leave = values < now
        entry, is_given, is_taken = _choose_entries(of_asking, held, values, may_leave)
        given = asking[is_given]
        new_ids, places = (
            tf.gather(ids, given),
            tf.stack([tf.gather(buckets, given), entry[is_given]], 1),
        )
        self._write(places, new_ids, tf.gather(counts, given), now)
        evicted = tf.reduce_sum(tf.cast(is_taken[is_given], tf.int64))
        is_admitted = (
            tf.scatter_nd(given[:, None], tf.ones_like(given), tf.shape(ids, tf.int64)) > 0
        )
        return new_ids, places[:, 0] * self.ways + places[:, 1], evicted, is_admitted

    def _add_candidates(
        self, ids: Tensor, buckets: Tensor, counts: Tensor, wants: Tensor, now: Tensor
    ) -> None:
        """Count ids from now on; a candidate that was not seen for longest is forgotten."""
        asking = _order_requests(ids, buckets, counts, wants)
        of_asking = tf.gather(buckets, asking)
        held = tf.gather(self.ids.value, of_asking)[:, self.ways :]
        seen = tf.gather(self.seen.value, of_asking)[:, self.ways :]
        entry, is_given, _ = _choose_entries(of_asking, held, seen, seen < now)
        given = asking[is_given]
        places = tf.stack([tf.gather(buckets, given), entry[is_given] + self.ways], 1)
        self._write(places, tf.gather(ids, given), tf.gather(counts, given), now)

    def _write(self, places: Tensor, ids: Tensor, counts: Tensor, now: Tensor) -> None:
        self.ids.value.scatter_nd_update(places, ids)
        self.counts.value.scatter_nd_update(places, counts)
        self.seen.value.scatter_nd_update(places, tf.fill(tf.shape(ids), now))

    def _clear(self, places: Tensor) -> None:
        empty = tf.fill(tf.shape(places)[:1], tf.constant(EMPTY, tf.int64))
        self.ids.value.scatter_nd_update(places, empty)
        self.counts.value.scatter_nd_update(places, tf.zeros_like(empty))

    def _expire(self, now: Tensor) -> Tensor:
        """Let ids go that are too old, now and then; return how many of them had a row."""
        age = self.rules.max_age
        if age is None:
            return tf.constant(0, tf.int64)

        def sweep() -> Tensor:
            ids = self.ids.value.read_value()
            is_old = (ids != EMPTY) & (self.seen.value < now - age)
            self.ids.value.assign(tf.where(is_old, tf.constant(EMPTY, tf.int64), ids))
            counts = self.counts.value.read_value()
            self.counts.value.assign(tf.where(is_old, tf.zeros_like(counts), counts))
            return tf.reduce_sum(tf.cast(is_old[:, : self.ways], tf.int64))

        interval = max(1, age // _SWEEPS_PER_AGE)
        return tf.cond(now % interval == 0, sweep, lambda: tf.constant(0, tf.int64))


class TableGrowth:
    """Gives the rows of a table to the ids that its index admits."""

    def __init__(
        self, index: TableIndex, initializer: Any, shape: tuple[int, ...], dtype: str
    ) -> None:
        self._index = index
        self._initial = (initializer, shape, dtype)
        self._rows: InitialRows | None = None

    def observe(self, ids: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Count ids; return the rows that have got another id, and their initial values."""
        if self._rows is None:
            with tf.init_scope():
                self._rows = InitialRows(*self._initial)
        admitted, rows = self._index.observe(ids, counts)
        return rows, self._rows.select(admitted)


class InitialRows:
    """The vectors that ids begin with: always the same one for the same id."""

    def __init__(self, initializer: Any, shape: tuple[int, ...], dtype: str) -> None:
        made = RowInitializer.make(initializer, shape, dtype)
        length = min(_INITIAL_ROWS, shape[0])
        if made is not None:
            self.rows = made.make_rows(0, min(length, made.block_rows))
        else:
            self.rows = tf.convert_to_tensor(initializer((length, *shape[1:]), dtype=dtype))

    def select(self, ids: Tensor) -> Tensor:
        return tf.gather(self.rows, hash_values(ids, int(self.rows.shape[0])))


def _match(entries: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the entry of each id in its bucket, and whether it has one."""
    is_equal = (entries == ids[:, None]) & (ids != EMPTY)[:, None]
    return tf.argmax(tf.cast(is_equal, tf.int8), 1), tf.reduce_any(is_equal, 1)


def _order_requests(ids: Tensor, buckets: Tensor, counts: Tensor, wants: Tensor) -> Tensor:
    """Return the positions of the ids that want an entry, by bucket, and the most frequent first.

    Ids of equal frequency are sorted, so that the order in which they arrived does not matter.
    """
    order = tf.where(wants)[:, 0]
    for values in (ids, -counts, buckets):
        order = tf.gather(order, tf.argsort(tf.gather(values, order), stable=True))
    return order


def _choose_entries(
    buckets: Tensor, held: Tensor, values: Tensor, may_leave: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose an entry for each request: the n-th one of a bucket gets its n-th lowest value.

    Returns the entry of each request, whether it is given, and whether an id has to leave it.
    """
    is_empty = held == EMPTY
    lowest = tf.argsort(tf.where(is_empty, tf.constant(EMPTY, tf.int64), values), stable=True)
    first = tf.searchsorted(buckets, buckets, side="left")
    rank = tf.range(tf.size(buckets)) - first
    width = int(held.shape[1])
    entry = tf.gather(lowest, tf.minimum(rank, width - 1), batch_dims=1)
    is_free = tf.gather(is_empty, entry, batch_dims=1)
    is_given = (rank < width) & (is_free | tf.gather(may_leave, entry, batch_dims=1))
    return tf.cast(entry, tf.int64), is_given, is_given & ~is_free


def _make_empty(shape: tuple[int, ...], dtype: str) -> Tensor:
    return tf.fill(shape, tf.constant(EMPTY, dtype))


def _make_zeros(shape: tuple[int, ...], dtype: str) -> Tensor:
    return tf.zeros(shape, dtype)
