"""Rows of variables, moved in pieces of bounded size, between hosts too."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import tensorflow as tf

from phalanx.train.types import Array, Tensor, TFVariable
from phalanx.train.variables.row_spread import RowSpan, join_rows, spread_rows

CHUNK_BYTES = 64 * 2**20
"""No message between two hosts has more bytes of rows than this."""


class RangeShards(tuple[TFVariable, ...]):
    """Shards that have consecutive rows each; others have rows as `spread_rows` says."""


@dataclass(frozen=True)
class RowRange:
    """Some consecutive rows of a table, in one of its shards."""

    shard: TFVariable
    begin: int
    """The number of the first row in the shard."""
    start: int
    """The number of the first row in the table."""
    length: int


@dataclass(frozen=True)
class Piece:
    """All rows of one chunk of a table that one shard has: consecutive only in the shard."""

    ranges: tuple[RowRange, ...]

    @property
    def start(self) -> int:
        """The number of the first row in the table."""
        return self.ranges[0].start

    @property
    def end(self) -> int:
        """The number after that of the last row in the table."""
        return self.ranges[-1].start + self.ranges[-1].length

    @property
    def rows(self) -> RowRange:
        """The rows in the shard."""
        first = self.ranges[0]
        return RowRange(first.shard, first.begin, first.start, sum(r.length for r in self.ranges))

    def positions(self, first: int) -> Array:
        """Return the number of each row in the table, counted from row `first`."""
        return np.concatenate([np.arange(r.start, r.start + r.length) - first for r in self.ranges])

    def select(self, values: Tensor, first: int) -> Tensor:
        """Return these rows from the values of all rows from `first` on."""
        if len(self.ranges) > 1:
            return tf.gather(values, self.positions(first))
        begin, length = self.start - first, self.end - self.start
        is_whole = begin == 0 and length == values.shape[0]
        return values if is_whole else values[begin : begin + length]


def chunk_rows(variable: TFVariable) -> int:
    """Return how many rows of a variable are moved at once."""
    size = math.prod(variable.shape[1:]) * tf.as_dtype(variable.dtype).size
    return int(max(1, CHUNK_BYTES // max(1, size)))


def read_spans(shards: Sequence[TFVariable]) -> tuple[RowSpan, ...]:
    """Return which rows of a table its shards have, in the order of the table."""
    spread = join_rows if isinstance(shards, RangeShards) else spread_rows
    return spread(tuple(int(shard.shape[0]) for shard in shards))


def split_rows(shards: Sequence[TFVariable], rows: int | None = None) -> Iterator[RowRange]:
    """Split the rows of shards into ranges that end at multiples of `rows` in the table.

    The ranges have the order of the table. By default, a range has as many rows as are moved at
    once.
    """
    step = rows or chunk_rows(shards[0])
    for span in read_spans(shards):
        done = 0
        while done < span.length:
            start = span.start + done
            length = min(span.length - done, step - start % step)
            yield RowRange(shards[span.shard], span.begin + done, start, length)
            done += length


def split_chunks(shards: Sequence[TFVariable], rows: int | None = None) -> Iterator[list[Piece]]:
    """Split a table into chunks of `rows` rows, and each chunk into one piece for each shard."""
    step = rows or chunk_rows(shards[0])
    for _, ranges in groupby(split_rows(shards, step), lambda rows: rows.start // step):
        by_shard: dict[int, list[RowRange]] = {}
        for each in ranges:
            by_shard.setdefault(id(each.shard), []).append(each)
        yield [Piece(tuple(of_shard)) for of_shard in by_shard.values()]


def read_range(rows: RowRange) -> Tensor:
    """Copy rows, on the device of their shard."""
    with tf.device(rows.shard.device):
        return tf.gather(rows.shard, tf.range(rows.begin, rows.begin + rows.length))


def write_range(rows: RowRange, values: Tensor | Array) -> None:
    """Replace rows, and wait until that is done, so that no other message is under way."""
    with tf.device(rows.shard.device):
        write_rows(rows.shard, tf.range(rows.begin, rows.begin + rows.length), values)


def write_rows(shard: TFVariable, indices: Tensor, values: Tensor | Array) -> None:
    """Replace any rows of a shard, and wait until that is done."""
    with tf.device(shard.device):
        values = tf.convert_to_tensor(values, shard.dtype)
        shard.scatter_update(tf.IndexedSlices(values, indices))
        tf.gather(shard, indices[:1]).numpy()


def copy_rows(source: Sequence[TFVariable], target: Sequence[TFVariable]) -> None:
    """Copy all rows from some shards to others, through this host if those are on two."""
    step = chunk_rows(target[0])
    chunks = zip(split_chunks(source, step), split_chunks(target, step), strict=True)
    for number, (given, wanted) in enumerate(chunks):
        values = _join(given, number * step)
        for piece in wanted:
            write_range(piece.rows, piece.select(values, number * step))


def fill_rows(shards: Sequence[TFVariable], make: Callable[[int, int], Tensor], step: int) -> None:
    """Make the rows of each shard on its own device, up to `step` of them at once."""
    for chunk in split_chunks(shards, step):
        for piece in chunk:
            with tf.device(piece.rows.shard.device):
                made = make(piece.start, piece.end)
                write_range(piece.rows, piece.select(made, piece.start))


def read_array(variable: TFVariable) -> Array:
    """Return the value of a variable, which may be on another host."""
    if not variable.shape.rank or _nbytes(variable) <= CHUNK_BYTES:
        return np.asarray(variable.numpy())
    return np.concatenate([read_range(rows).numpy() for rows in split_rows([variable])])


def write_array(variable: TFVariable, value: Array) -> None:
    """Assign a variable, which may be on another host."""
    if not variable.shape.rank or _nbytes(variable) <= CHUNK_BYTES:
        variable.assign(value)
        return
    for rows in split_rows([variable]):
        write_range(rows, value[rows.begin : rows.begin + rows.length])


def _join(pieces: Sequence[Piece], first: int) -> Tensor | Array:
    """Return the rows of a chunk that begins with row `first`, in the order of the table."""
    if len(pieces) == 1:
        return read_range(pieces[0].rows)
    parts = [read_range(piece.rows).numpy() for piece in pieces]
    joined = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    for piece, part in zip(pieces, parts, strict=True):
        joined[piece.positions(first)] = part
    return joined


def _nbytes(variable: TFVariable) -> int:
    return int(math.prod(variable.shape) * tf.as_dtype(variable.dtype).size)
