from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.data.order import LANES, Order
from phalanx.errors import DataError


def examples(order: Order, start: int, num_shards: int, epochs: int) -> dict[int, int]:
    """The record of every example number, as all workers together read them."""
    found: dict[int, int] = {}
    for shard in range(num_shards):
        last = -1
        for request in order.plan_reads(start, num_shards=num_shards, shard=shard, epochs=epochs):
            records = np.concatenate([np.arange(begin, end) for begin, end in request.ranges])
            for index, pick in enumerate(request.picks):
                number = request.first + index * request.step
                assert number not in found, "an example came twice"
                assert number > last, "a worker's examples come in order"
                found[number] = int(records[pick])
                last = number
    return found


COUNTS = st.integers(1, 40) | st.integers(LANES - 2, LANES + 2) | st.integers(1, 5 * LANES)


@settings(max_examples=60)
@given(COUNTS, st.integers(1, 6), st.none() | st.integers(0, 9), st.integers(1, 13), st.data())
def test_every_example_is_read_once_per_epoch_with_any_workers_and_start(
    count: int, block: int, seed: int | None, workers: int, data: st.DataObject
) -> None:
    order = Order(count, block, seed)
    alone = examples(order, 0, 1, 2)
    for epoch in range(2):
        seen = [alone[number] for number in range(epoch * count, (epoch + 1) * count)]
        assert sorted(seen) == list(range(count))
    start = data.draw(st.integers(0, 2 * count))
    together = examples(order, start, workers, 2)
    assert together == {number: alone[number] for number in range(start, 2 * count)}


def test_without_seed_records_stay_in_order() -> None:
    found = examples(Order(10_000, 7, None), 0, 3, 1)
    assert [found[number] for number in range(10_000)] == list(range(10_000))


def test_order_depends_on_epoch_and_seed() -> None:
    order, other = (examples(Order(3000, 4, seed), 0, 1, 2) for seed in (1, 2))
    first, second = ([found[n] for n in range(3000)] for found in (order, other))
    assert first != second
    assert first != [order[n] for n in range(3000, 6000)]


def test_neighbours_come_from_different_blocks() -> None:
    found = examples(Order(100_000, 16, 1), 0, 1, 1)
    batch = [found[number] for number in range(1000, 1128)]
    assert len({record // 16 for record in batch}) > 120


@pytest.mark.parametrize("workers", [2, 4, 8, 16, 60])
def test_workers_read_disjoint_ranges(workers: int) -> None:
    order = Order(50_000, 5, 1)
    read = 0
    for shard in range(workers):
        for request in order.plan_reads(0, num_shards=workers, shard=shard):
            read += sum(end - begin for begin, end in request.ranges)
    assert read == 50_000


def test_invalid_shard_and_start_are_rejected() -> None:
    with pytest.raises(DataError, match="shard 2 of 2"):
        next(Order(10, 1, None).plan_reads(0, num_shards=2, shard=2))
    with pytest.raises(DataError, match="start is -1"):
        next(Order(10, 1, None).plan_reads(-1))
