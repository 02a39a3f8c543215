"""Rows of variables, moved in pieces of bounded size, between hosts too."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from phalanx.train.types import Array, Tensor, TFVariable

CHUNK_BYTES = 64 * 2**20
"""No message between two hosts has more bytes of rows than this."""


@dataclass(frozen=True)
class RowRange:
    """Some consecutive rows of a table, in one of its shards."""

    shard: TFVariable
    begin: int
    """The number of the first row in the shard."""
    start: int
    """The number of the first row in the table."""
    length: int


def chunk_rows(variable: TFVariable) -> int:
    """Return how many rows of a variable are moved at once."""
    size = math.prod(variable.shape[1:]) * tf.as_dtype(variable.dtype).size
    return int(max(1, CHUNK_BYTES // max(1, size)))


def split_rows(shards: Sequence[TFVariable], rows: int | None = None) -> Iterator[RowRange]:
    """Split the rows of shards into ranges that end at multiples of `rows` in the table.

    By default, a range has as many rows as are moved at once.
    """
    start = 0
    for shard in shards:
        step = rows or chunk_rows(shard)
        begin, length = 0, int(shard.shape[0])
        while begin < length:
            end = min(length, begin + step - (start + begin) % step)
            yield RowRange(shard, begin, start + begin, end - begin)
            begin = end
        start += length


def read_range(rows: RowRange) -> Tensor:
    """Copy rows, on the device of their shard."""
    with tf.device(rows.shard.device):
        return tf.gather(rows.shard, tf.range(rows.begin, rows.begin + rows.length))


def write_range(rows: RowRange, values: Tensor | Array) -> None:
    """Replace rows, and wait until that is done, so that no other message is under way."""
    with tf.device(rows.shard.device):
        indices = tf.range(rows.begin, rows.begin + rows.length)
        values = tf.convert_to_tensor(values, rows.shard.dtype)
        rows.shard.scatter_update(tf.IndexedSlices(values, indices))
        tf.gather(rows.shard, indices[:1]).numpy()


def copy_rows(source: Sequence[TFVariable], target: Sequence[TFVariable]) -> None:
    """Copy all rows from some shards to others, through this host if those are on two."""
    for rows in split_rows(target):
        parts = [
            read_range(RowRange(r.shard, r.begin + skip, rows.start, length))
            for r in split_rows(source)
            if (skip := max(0, rows.start - r.start)) < r.length
            and (length := min(r.length - skip, rows.start + rows.length - r.start - skip)) > 0
        ]
        write_range(rows, _to_host(parts))


def fill_rows(shards: Sequence[TFVariable], make: Callable[[int, int], Tensor], step: int) -> None:
    """Make the rows of each shard on its own device, up to `step` of them at once."""
    for rows in split_rows(shards, step):
        with tf.device(rows.shard.device):
            write_range(rows, make(rows.start, rows.start + rows.length))


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


def _to_host(parts: Sequence[Tensor]) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([part.numpy() for part in parts])


def _nbytes(variable: TFVariable) -> int:
    return int(math.prod(variable.shape) * tf.as_dtype(variable.dtype).size)
