"""Some buckets of the index of a growing table, on the device that has their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.embedding_inputs import hash_values
from phalanx.train.types import Tensor, TFVariable

EMPTY = -(2**63)
"""The id of an entry without an id. No id of this value ever gets a row."""

EVICTIONS = ("oldest", "rarest")
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


class Sightings(NamedTuple):
    """The ids that a step has looked up in one shard of a growing table, each of them once."""

    ids: Tensor
    counts: Tensor
    """How often each id was looked up; 0 for one that is not counted, such as padding."""
    clock: Tensor
    """How many steps the shard had observed when the ids were looked up."""

    @classmethod
    def none(cls) -> Sightings:
        return cls(tf.zeros([0], tf.int64), tf.zeros([0], tf.int64), tf.constant(2**62, tf.int64))

    @classmethod
    def add(cls, all_sightings: Sequence[Sightings]) -> Sightings:
        """Add up sightings of the same shard."""
        if len(all_sightings) == 1:
            return all_sightings[0]
        ids, counts, clocks = zip(cls.none(), *all_sightings, strict=True)
        return cls.merge(tf.concat(ids, 0), tf.concat(counts, 0), tf.reduce_min(clocks))

    @classmethod
    def merge(cls, ids: Tensor, counts: Tensor, clock: Tensor | None = None) -> Sightings:
        """Return sightings with each id once, from ids that may occur several times."""
        unique, positions = tf.unique(ids)
        counts = tf.math.unsorted_segment_sum(counts, positions, tf.size(unique))
        return cls(unique, counts, cls.none().clock if clock is None else clock)


@dataclass(frozen=True)
class IndexShard:
    """The entries of consecutive buckets: finds the rows of ids, counts ids, and admits them.

    The first entries of a bucket have a row each, in the same order as the rows of the shard. The
    ids of the other entries are candidates, which are only counted.
    """

    rules: GrowthRules
    ways: int
    buckets: int
    """The number of buckets of the whole index."""
    first: int
    """The number of the first bucket of this shard."""
    ids: TFVariable
    counts: TFVariable
    seen: TFVariable
    totals: TFVariable
    """The number of observed steps, and how many ids were admitted, evicted and expired."""
    admitted_at: TFVariable
    """For each row of the shard: the step at which its id was admitted, since the run began."""
    changed: TFVariable
    """Which buckets have changed; None if that is not noted."""
    initial: TFVariable
    """The vectors that ids begin with: always the same one for the same id."""

    @property
    def device(self) -> str:
        return str(self.ids.device)

    @property
    def own_rows(self) -> int:
        """How many rows of the shard belong to buckets; rows after them are shared by ids."""
        return int(self.ids.shape[0]) * self.ways

    @unconverted
    def read_clock(self) -> Tensor:
        return self.totals[0, 0]

    @unconverted
    def find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the row of each id in this shard, and whether it has one."""
        buckets = self._find_buckets(ids)
        entries = tf.gather(self.ids, buckets)[:, : self.ways]
        entry, is_found = _match(entries, ids)
        return buckets * self.ways + entry, is_found

    @unconverted
    def drop_stale(self, gradient: Tensor, clock: Tensor) -> Tensor:
        """Leave out the rows that were given to another id after they were looked up."""
        is_current = tf.gather(self.admitted_at, gradient.indices) <= clock
        return tf.IndexedSlices(
            gradient.values[is_current], gradient.indices[is_current], gradient.dense_shape
        )

    @unconverted
    def observe(self, ids: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Count the ids of a step, each of which is given once, and admit those that qualify.

        Returns:
            The ids that got a row, and their rows, which still have the values of earlier ids.
        """
        now = self.read_clock() + 1
        is_id = (ids != EMPTY) & (counts > 0)
        ids, counts = ids[is_id], counts[is_id]
        buckets = self._find_buckets(ids)
        entry, is_found = _match(tf.gather(self.ids, buckets), ids)
        places = tf.stack([buckets, entry], 1)
        counts += tf.where(is_found, tf.gather_nd(self.counts, places), 0)
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
        self.totals.assign_add([[tf.constant(1, tf.int64), admitted, evicted, expired]])
        times = tf.fill(tf.shape(rows), now)
        self.admitted_at.scatter_update(tf.IndexedSlices(times, rows))
        return new_ids, rows

    @unconverted
    def make_rows(self, ids: Tensor) -> Tensor:
        """Return the vectors that ids begin with."""
        return tf.gather(self.initial, hash_values(ids, int(self.initial.shape[0])))

    def _find_buckets(self, ids: Tensor) -> Tensor:
        return hash_values(ids, self.buckets) - self.first

    def _admit(
        self, ids: Tensor, buckets: Tensor, counts: Tensor, wants: Tensor, now: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Give rows to ids; return these ids, their rows, the number of evictions, and a mask."""
        asking = _order_requests(ids, buckets, counts, wants)
        of_asking, of_counts = tf.gather(buckets, asking), tf.gather(counts, asking)
        held = tf.gather(self.ids, of_asking)[:, : self.ways]
        if self.rules.evict == "rarest":
            values = tf.gather(self.counts, of_asking)[:, : self.ways]
            may_leave = values < of_counts[:, None]
        else:
            values = tf.gather(self.seen, of_asking)[:, : self.ways]
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
        held = tf.gather(self.ids, of_asking)[:, self.ways :]
        seen = tf.gather(self.seen, of_asking)[:, self.ways :]
        entry, is_given, _ = _choose_entries(of_asking, held, seen, seen < now)
        given = asking[is_given]
        places = tf.stack([tf.gather(buckets, given), entry[is_given] + self.ways], 1)
        self._write(places, tf.gather(ids, given), tf.gather(counts, given), now)

    def _write(self, places: Tensor, ids: Tensor, counts: Tensor, now: Tensor) -> None:
        note_changes(self.changed, places[:, 0])
        self.ids.scatter_nd_update(places, ids)
        self.counts.scatter_nd_update(places, counts)
        self.seen.scatter_nd_update(places, tf.fill(tf.shape(ids), now))

    def _clear(self, places: Tensor) -> None:
        note_changes(self.changed, places[:, 0])
        empty = tf.fill(tf.shape(places)[:1], tf.constant(EMPTY, tf.int64))
        self.ids.scatter_nd_update(places, empty)
        self.counts.scatter_nd_update(places, tf.zeros_like(empty))

    def _expire(self, now: Tensor) -> Tensor:
        """Let ids go that are too old, now and then; return how many of them had a row."""
        age = self.rules.max_age
        if age is None:
            return tf.constant(0, tf.int64)

        def sweep() -> Tensor:
            ids = self.ids.read_value()
            is_old = (ids != EMPTY) & (self.seen < now - age)
            note_changes(self.changed, tf.where(tf.reduce_any(is_old, 1))[:, 0])
            self.ids.assign(tf.where(is_old, tf.constant(EMPTY, tf.int64), ids))
            counts = self.counts.read_value()
            self.counts.assign(tf.where(is_old, tf.zeros_like(counts), counts))
            return tf.reduce_sum(tf.cast(is_old[:, : self.ways], tf.int64))

        interval = max(1, age // _SWEEPS_PER_AGE)
        return tf.cond(now % interval == 0, sweep, lambda: tf.constant(0, tf.int64))


def note_changes(changed: TFVariable | None, rows: Tensor) -> None:
    """Mark rows as changed, if that is noted."""
    if changed is not None:
        marks = tf.ones_like(rows, tf.bool)
        changed.scatter_update(tf.IndexedSlices(marks, rows))


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
