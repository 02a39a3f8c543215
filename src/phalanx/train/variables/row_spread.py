"""Which shard of a table has which rows: every part of a table is spread over all of its shards."""

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

# A range is so many times shorter than its distance from the nearer end, for each shard.
_GRAIN = 4


@dataclass(frozen=True)
class RowSpan:
    """Some consecutive rows of a table, in one of its shards."""

    shard: int
    begin: int
    """The number of the first row in the shard."""
    start: int
    """The number of the first row in the table."""
    length: int


@lru_cache(maxsize=1024)
def join_rows(sizes: tuple[int, ...]) -> tuple[RowSpan, ...]:
    """Return the rows of shards that have consecutive rows each.

    >>> [(span.shard, span.start, span.length) for span in join_rows((4, 3))]
    [(0, 0, 4), (1, 4, 3)]
    """
    starts = accumulate(sizes, initial=0)
    pairs = enumerate(zip(starts, sizes, strict=False))
    return tuple(RowSpan(shard, 0, start, length) for shard, (start, length) in pairs)


@lru_cache(maxsize=1024)
def spread_rows(sizes: tuple[int, ...]) -> tuple[RowSpan, ...]:
    """Return the rows that shards of these sizes have, in the order of the table.

    Indices are often sorted by frequency or by age, so that the rows near one end of a table are
    looked up most. The shards take turns: with single rows at both ends, and with ranges that
    become longer towards the middle. So there are few ranges, and whatever part of the table is
    looked up most, each shard has its share of it. A shard has its rows in the order of the table.

    >>> [(span.shard, span.start, span.length) for span in spread_rows((4, 3))]
    [(0, 0, 1), (1, 1, 1), (0, 2, 2), (1, 4, 2), (0, 6, 1)]
    """
    shards, turns = len(sizes), list(range(len(sizes)))
    blocks: list[tuple[int, int]] = []
    taken = distance = 0
    while (length := max(1, distance // (_GRAIN * shards))) * 2 <= min(sizes) - taken:
        blocks += [(shard, length) for shard in turns]
        # The first of a round has the more frequent rows: it is the last of the next round.
        turns.reverse()
        taken += 2 * length
        distance += shards * length
    middle = [(shard, size - taken) for shard, size in enumerate(sizes) if size > taken]
    spans: list[RowSpan] = []
    begins, start = [0] * shards, 0
    for shard, length in (*blocks, *middle, *reversed(blocks)):
        if spans and spans[-1].shard == shard:
            last = spans.pop()
            span = RowSpan(shard, last.begin, last.start, last.length + length)
        else:
            span = RowSpan(shard, begins[shard], start, length)
        spans.append(span)
        begins[shard] += length
        start += length
    return tuple(spans)
