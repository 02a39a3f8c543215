"""The order of an epoch's examples: a pure function, so that a position is just a number.

Examples are counted across all epochs and all workers. Number `g` belongs to epoch `g // count`, and
to the worker `g % num_shards`. After `g` examples were seen in all, any number of workers can go on
from there: each example comes once in every epoch, none is lost and none comes twice.

A shuffled order must still be read in long stretches. So the records are cut into blocks of
neighbours, the blocks are shuffled, and `LANES` of them at a time make a stripe. A stripe deals out
its blocks' records in turn, each block's in an order of its own: neighbours in the order come from
different blocks. As position p always lies in lane p % LANES, a worker whose number of peers divides
LANES (which has many divisors) finds its examples in blocks that no other worker reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from phalanx.errors import DataError

LANES = 960
"""Divided by every number up to 6, and by 8, 10, 12, 16, 20, 24, 32, 48, 60, 64, 80, 96, ..."""

_STEP_IN_ORDER = 4096

Indices = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Reading:
    """What a worker reads at a time: ranges of records, and which of these records, in order.

    `picks` are places in the records of all `ranges` put one after the other; `first` is the number
    of the first example and `step` the distance to the next.
    """

    ranges: tuple[tuple[int, int], ...]
    picks: Indices
    first: int
    step: int


@dataclass(frozen=True)
class Order:
    """The order of `count` records, shuffled if there is a seed, in blocks of about `block` records.

    >>> order = Order(count=5, block=1, seed=None)
    >>> [list(reading.picks) for reading in order.readings(0, num_shards=2, shard=0)]
    [[0, 2, 4]]
    """

    count: int
    block: int
    seed: int | None

    def readings(
        self, start: int, *, num_shards: int = 1, shard: int = 0, epochs: int | None = 1
    ) -> Iterator[Reading]:
        """What one of `num_shards` workers reads after `start` examples were seen by all of them.

        It ends after `epochs` epochs, counted from the very first; None never ends.
        """
        if not 0 <= shard < num_shards:
            raise DataError(f"shard {shard} of {num_shards} does not exist")
        if start < 0:
            raise DataError(f"{start} examples cannot have been seen: take 0 or more")
        epoch = start // self.count
        while epochs is None or epoch < epochs:
            before = epoch * self.count
            for stripe in self._stripes(epoch):
                reading = stripe.share(before, start, num_shards, shard)
                if reading is not None:
                    yield reading
            epoch += 1

    def _stripes(self, epoch: int) -> Iterator[_Stripe]:
        if self.seed is None:
            for first in range(0, self.count, _STEP_IN_ORDER):
                size = min(_STEP_IN_ORDER, self.count - first)
                yield _Stripe(self.count, first, 1, np.arange(first, first + size), None)
            return
        random = np.random.default_rng((self.seed, epoch))
        # Another beginning each epoch: blocks have other members, and the uneven end moves about.
        shift = int(random.integers(self.count))
        full = self.count // (LANES * self.block)
        begins = shift + self.block * random.permutation(full * LANES)
        for number in range(full):
            lanes = begins[number * LANES : (number + 1) * LANES]
            yield _Stripe(self.count, number * LANES * self.block, self.block, lanes,
                          (self.seed, epoch, number))  # fmt: skip
        done = full * LANES * self.block
        size = (self.count - done) // LANES
        if size:
            lanes = shift + done + size * random.permutation(LANES)
            yield _Stripe(self.count, done, size, lanes, (self.seed, epoch, full))
            done += size * LANES
        if done < self.count:
            lanes = shift + done + random.permutation(self.count - done)
            yield _Stripe(self.count, done, 1, lanes, None)


@dataclass(frozen=True)
class _Stripe:
    """Blocks of `block` records that begin at `lanes`, dealt out in turn from position `first` on."""

    count: int
    first: int
    block: int
    lanes: Indices
    seed: tuple[int, int, int] | None

    def share(self, before: int, start: int, num_shards: int, shard: int) -> Reading | None:
        """One worker's part of it, without what was seen before; None if nothing is left."""
        begin = before + self.first
        skipped = max(start - begin, 0)
        offset = skipped + (shard - begin - skipped) % num_shards
        places = np.arange(offset, len(self.lanes) * self.block, num_shards)
        if not len(places):
            return None
        lanes, used = np.unique(places % len(self.lanes), return_inverse=True)
        inside = places // len(self.lanes)
        if self.block > 1 and self.seed is not None:
            keys = np.random.default_rng(self.seed).random((len(self.lanes), self.block))
            inside = keys[lanes].argsort(axis=1)[used, inside]
        ranges: list[tuple[int, int]] = []
        bases = np.empty(len(lanes), np.int64)
        # In the order of the files, neighbours joined; a block may go round the end.
        begins = self.lanes[lanes] % self.count
        size = 0
        for lane in np.argsort(begins, kind="stable"):
            bases[lane] = size
            size += self.block
            _add_range(ranges, int(begins[lane]), self.block, self.count)
        return Reading(tuple(ranges), bases[used] + inside, begin + offset, num_shards)


def _add_range(ranges: list[tuple[int, int]], begin: int, size: int, count: int) -> None:
    end = min(begin + size, count)
    if ranges and ranges[-1][1] == begin:
        ranges[-1] = ranges[-1][0], end
    else:
        ranges.append((begin, end))
    if begin + size > count:
        ranges.append((0, begin + size - count))
