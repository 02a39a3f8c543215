"""The index of a growing table, compared with one of Python dictionaries."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from phalanx.train.embedding_inputs import hash_values
from phalanx.train.variables.index_shard import EMPTY, GrowthRules, Sightings
from phalanx.train.variables.table_index import TableIndex


def make_index(buckets: int, ways: int, rules: GrowthRules) -> TableIndex:
    shape = (buckets * ways + 1, 2)
    return TableIndex(buckets, ways, 1, rules, (keras.initializers.Ones(), shape, "float32"))


class Reference:
    """Follows the rules of an index with dictionaries: entry number to (id, count, last seen)."""

    def __init__(self, buckets: int, ways: int, rules: GrowthRules) -> None:
        self.ways, self.rules = ways, rules
        self.rows: list[dict[int, list[int]]] = [{} for _ in range(buckets)]
        self.candidates: list[dict[int, list[int]]] = [{} for _ in range(buckets)]
        self.now = self.admitted = self.evicted = self.expired = 0

    def observe(self, sightings: dict[int, int]) -> None:
        self.now += 1
        buckets = len(self.rows)
        by_bucket: dict[int, list[tuple[int, int]]] = {}
        for key, count in sightings.items():
            number = int(hash_values(tf.constant(key, tf.int64), buckets))
            by_bucket.setdefault(number, []).append((key, count))
        for number, seen in by_bucket.items():
            self._observe_bucket(self.rows[number], self.candidates[number], seen)
        age = self.rules.max_age
        if age is not None and self.now % max(1, age // 8) == 0:
            for section in (*self.rows, *self.candidates):
                old = [entry for entry, (_, _, at) in section.items() if at < self.now - age]
                for entry in old:
                    del section[entry]
                self.expired += len(old) if any(section is rows for rows in self.rows) else 0

    def _observe_bucket(self, rows: Any, candidates: Any, seen: list[tuple[int, int]]) -> None:
        totals, asking, unknown = {}, [], []
        for key, count in seen:
            for section in (rows, candidates):
                for held in section.values():
                    if held[0] == key:
                        held[1:] = held[1] + count, self.now
                        totals[key] = held[1]
            is_held = any(held[0] == key for held in rows.values())
            is_known = key in totals
            totals.setdefault(key, count)
            if not is_held and totals[key] >= self.rules.min_count:
                asking.append(key)
            elif not is_known:
                unknown.append(key)
        by = 1 if self.rules.evict == "rarest" else 2
        asking.sort(key=lambda key: (-totals[key], key))
        for key, entry in zip(asking, self._victims(rows, by), strict=False):
            limit = totals[key] if by == 1 else self.now
            if entry in rows and rows[entry][by] >= limit:
                continue
            self.admitted += 1
            self.evicted += entry in rows
            rows[entry] = [key, totals[key], self.now]
            for number in [n for n, held in candidates.items() if held[0] == key]:
                del candidates[number]
        if self.rules.needs_candidates:
            kept = {held[0] for held in (*rows.values(), *candidates.values())}
            unknown += [key for key in asking if key not in kept]
            unknown.sort(key=lambda key: (-totals[key], key))
            for key, entry in zip(unknown, self._victims(candidates, 2), strict=False):
                if entry not in candidates or candidates[entry][2] < self.now:
                    candidates[entry] = [key, totals[key], self.now]

    def _victims(self, section: Any, by: int) -> list[int]:
        entries = range(self.ways)
        return sorted(entries, key=lambda e: section[e][by] if e in section else EMPTY)


RULES = [
    GrowthRules(),
    GrowthRules(min_count=3),
    GrowthRules(evict="rarest"),
    GrowthRules(max_age=8),
    GrowthRules(min_count=2, max_age=20, evict="rarest"),
]


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize(("buckets", "ways"), [(1, 3), (7, 4)])
def test_ids_have_the_rows_and_counts_of_the_reference(
    rules: GrowthRules, buckets: int, ways: int
) -> None:
    shard = make_index(buckets, ways, rules).make_shard(0, buckets, buckets * ways + 1)
    reference = Reference(buckets, ways, rules)
    vectors = [tf.TensorSpec([None], tf.int64)] * 2
    observe = tf.function(shard.observe, input_signature=vectors)
    random = np.random.default_rng(1)
    for step in range(60):
        drawn = random.zipf(1.5, 30) % 40 + step // 20 * 10 - 5
        ids, counts = np.unique(drawn, return_counts=True)
        shuffled = random.permutation(len(ids))
        new_ids, rows = observe(ids[shuffled], counts[shuffled])
        reference.observe(dict(zip(ids.tolist(), counts.tolist(), strict=True)))
        held = shard.ids.numpy()[:, :ways]
        assert held.reshape(-1)[rows.numpy()].tolist() == new_ids.numpy().tolist()
        for number in range(buckets):
            sections = (reference.rows[number], reference.candidates[number])
            expected = [held for section in sections for held in section.values()]
            entries = zip(
                shard.ids[number].numpy().tolist(),
                shard.counts[number].numpy().tolist(),
                shard.seen[number].numpy().tolist(),
                strict=True,
            )
            found = [list(entry) for entry in entries if entry[0] != EMPTY]
            assert sorted(found) == sorted(expected)
    now, admitted, evicted, expired = shard.totals.numpy()[0].tolist()
    assert now == 60
    assert (admitted, evicted, expired) == (
        reference.admitted, reference.evicted, reference.expired,
    )  # fmt: skip
    assert admitted - evicted - expired == sum(map(len, reference.rows))


def test_reserved_id_and_ids_that_do_not_count_get_no_row() -> None:
    shard = make_index(1, 3, GrowthRules()).make_shard(0, 1, 4)
    shard.observe(tf.constant([EMPTY, 5, 7], tf.int64), tf.constant([1, 1, 0], tf.int64))
    _, is_found = shard.find(tf.constant([EMPTY, 5, 6, 7], tf.int64))
    assert is_found.numpy().tolist() == [False, True, False, False]


def test_gradient_does_not_reach_a_row_that_was_given_to_another_id() -> None:
    shard = make_index(1, 2, GrowthRules()).make_shard(0, 1, 3)
    one = tf.constant([1], tf.int64)
    for number in (4, 5):
        shard.observe(one * number, one)
    clock = shard.read_clock()
    rows, is_found = shard.find(tf.constant([4, 5], tf.int64))
    assert is_found.numpy().all()
    looked_up = tf.concat([rows, [2]], 0)  # Row 2 is shared.
    gradient = tf.IndexedSlices(tf.reshape(tf.range(3.0), [3, 1]), looked_up)
    assert len(shard.drop_stale(gradient, clock).indices) == 3
    shard.observe(one * 6, one)  # The oldest id, 4, has to leave.
    kept = shard.drop_stale(gradient, clock)
    assert kept.indices.numpy().tolist() == [int(rows[1]), 2]
    assert kept.values.numpy().tolist() == [[1.0], [2.0]]


def test_merged_sightings_have_each_id_once() -> None:
    first = Sightings(*(tf.constant(v, tf.int64) for v in ([3, 4], [1, 2], 7)))
    second = Sightings(*(tf.constant(v, tf.int64) for v in ([4, 5], [5, 1], 6)))
    merged = Sightings.add([first, second])
    assert dict(zip(merged.ids.numpy(), merged.counts.numpy(), strict=True)) == {3: 1, 4: 7, 5: 1}
    assert int(merged.clock) == 6
