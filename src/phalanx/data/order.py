"""The order of the examples, as a pure function of seed and epoch: a position is one number.

Examples are numbered across all epochs and all workers. Number `g` belongs to epoch `g // count`
and to worker `g % num_shards`. Training can resume at any number with any number of workers: every
example is read exactly once in each epoch.

A shuffled order must still be read in large blocks. The records are therefore split into blocks of
neighbours, the blocks are shuffled, and each `LANES` blocks form a stripe. A stripe takes records
from its blocks in turn, in a random order within each block, so that neighbours in the order come
from different blocks. Position p is always in lane p % LANES. If the number of workers divides
LANES, which has many divisors, each worker reads blocks that no other worker reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from phalanx.data.types import Indices
from phalanx.errors import DataError

LANES = 960
"""Divisible by 1 to 6, 8, 10, 12, 16, 20, 24, 32, 48, 60, 64, 80, 96, ..."""

_UNSHUFFLED_BLOCK = 4096


@dataclass(frozen=True)
class ReadRequest:
    """What a worker reads at a time: ranges of records, and which of them, in which order.

    `picks` are indices into the concatenated ranges; `first` is the number of the first example and
    `step` the distance to the next.
    """

    ranges: tuple[tuple[int, int], ...]
    picks: Indices
    first: int
    step: int


@dataclass(frozen=True)
class Order:
    """The order of `count` records: shuffled if there is a seed, in blocks of at most `block`.

    >>> order = Order(count=5, block=1, seed=None)
    >>> request = next(order.plan_reads(start=1, num_shards=2, shard=0))
    >>> request.ranges, request.picks.tolist()
    (((2, 5),), [0, 2])
    """

    count: int
    block: int
    seed: int | None

    def plan_reads(
        self, start: int, *, num_shards: int = 1, shard: int = 0, epochs: int | None = 1
    ) -> Iterator[ReadRequest]:
        """What a worker reads after all workers together have read `start` examples.

        It ends after `epochs` epochs, counted from example 0, or never if that is None.
        """
        if not 0 <= shard < num_shards:
            raise DataError(f"shard {shard} of {num_shards} does not exist")
        if start < 0:
            raise DataError(
                f"start is {start}: it counts the examples read before, so set it to 0 or more"
            )
        epoch = start // self.count
        while epochs is None or epoch < epochs:
            before = epoch * self.count
            for stripe in self._stripes(epoch):
                request = stripe.select_shard(before, start, num_shards, shard)
                if request is not None:
                    yield request
            epoch += 1

    def _stripes(self, epoch: int) -> Iterator[_Stripe]:
        if self.seed is None:
            for first in range(0, self.count, _UNSHUFFLED_BLOCK):
                size = min(_UNSHUFFLED_BLOCK, self.count - first)
                lanes = np.arange(first, first + size)
                yield _Stripe(self.count, first, 1, lanes, None, gap=self.block)
            return
        random = np.random.default_rng((self.seed, epoch))
        # Shift the blocks in each epoch, so that they hold other records and the rest moves.
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
    """Blocks of `block` records that begin at `lanes`, read in turn from position `first` on."""

    count: int
    first: int
    block: int
    lanes: Indices
    seed: tuple[int, int, int] | None
    gap: int = 0

    def select_shard(
        self, before: int, start: int, num_shards: int, shard: int
    ) -> ReadRequest | None:
        """The examples of one worker from number `start` on; None if there are none."""
        begin = before + self.first
        skipped = max(start - begin, 0)
        offset = skipped + (shard - begin - skipped) % num_shards
        positions = np.arange(offset, len(self.lanes) * self.block, num_shards)
        if not len(positions):
            return None
        lanes, used = np.unique(positions % len(self.lanes), return_inverse=True)
        inside = positions // len(self.lanes)
        if self.block > 1 and self.seed is not None:
            keys = np.random.default_rng(self.seed).random((len(self.lanes), self.block))
            inside = keys[lanes].argsort(axis=1)[used, inside]
        ranges: list[tuple[int, int]] = []
        bases = np.empty(len(lanes), np.int64)
        # Ranges are sorted, and neighbours joined; a block may wrap around the end.
        begins = self.lanes[lanes] % self.count
        size = 0
        for lane in np.argsort(begins, kind="stable"):
            # Reading across a small gap is cheaper than reading twice.
            if ranges and 0 < begins[lane] - ranges[-1][1] <= self.gap:
                size += int(begins[lane]) - ranges[-1][1]
                ranges[-1] = ranges[-1][0], int(begins[lane])
            bases[lane] = size
            size += self.block
            _add_range(ranges, int(begins[lane]), self.block, self.count)
        return ReadRequest(tuple(ranges), bases[used] + inside, begin + offset, num_shards)


def _add_range(ranges: list[tuple[int, int]], begin: int, size: int, count: int) -> None:
    end = min(begin + size, count)
    if ranges and ranges[-1][1] == begin:
        ranges[-1] = ranges[-1][0], end
    else:
        ranges.append((begin, end))
    if begin + size > count:
        ranges.append((0, begin + size - count))
