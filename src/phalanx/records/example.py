"""Examples and SequenceExamples to and from Arrow, NumPy and Python rows.

    table = read_table("train-*.tfrecord")              # pyarrow.Table
    arrays = read_arrays("train-*.tfrecord")            # {"label": array([...]), ...}
    for row in read_rows("train-*.tfrecord"):           # {"label": 3, "image": b"..."}
        ...
    write_examples("out.tfrecord", table)               # or arrays, or rows

A feature that a record lacks is null (None). A feature list of a SequenceExample is a column of
lists of lists, and a column of lists of lists becomes one.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from phalanx.errors import DataError
from phalanx.records.codec import codec
from phalanx.records.compression import Compression
from phalanx.records.framing import Chunk, Paths, read_chunks
from phalanx.records.schema import Schema
from phalanx.records.storage import expand
from phalanx.records.summary import decode_chunk, find_schema, summarize_chunk
from phalanx.records.writer import RecordWriter, ShardedWriter

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from phalanx.records.arrow import Kinds


BATCH_SIZE = 4096

Columns: TypeAlias = Any
"""An Arrow table or batch, a dictionary of arrays or lists, or rows as dictionaries."""


def read_batches(
    paths: Paths,
    schema: Schema | None = None,
    *,
    batch_size: int | None = None,
    columns: Sequence[str] | None = None,
    threads: int = 1,
    compression: Compression | None = None,
    check: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The files' Examples as Arrow batches of `batch_size` rows; a file's last may have fewer.

    Left out, a batch has what fits in about a megabyte, which is fastest.

    Without a schema the one saved beside the files is taken, and if there is none, all files are
    read once to find it. `columns` chooses some features: the others are not even decoded. Several
    threads decode several batches at the same time, and their order stays.
    """
    from phalanx.records.arrow import to_batch  # noqa: PLC0415

    if batch_size is not None and batch_size < 1:
        raise DataError(f"a batch of {batch_size} examples cannot be made: take 1 or more")
    files = expand(paths)
    schema = find_schema(files, schema)
    if columns is not None:
        schema = schema.select(list(columns))

    def decode(path: str, chunk: Chunk) -> pa.RecordBatch:
        return to_batch(decode_chunk(path, chunk, schema), len(chunk), schema)

    chunks = (
        (path, chunk)
        for path in files
        for chunk in read_chunks(path, most=batch_size, compression=compression, check=check)
    )
    if threads <= 1:
        for path, chunk in chunks:
            yield decode(path, chunk)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[pa.RecordBatch]] = deque()
        for path, chunk in chunks:
            copy = Chunk(memoryview(bytes(chunk.data)), chunk.spans, chunk.index, chunk.offset)
            waiting.append(pool.submit(decode, path, copy))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def read_table(paths: Paths, schema: Schema | None = None, **options: Any) -> pa.Table:
    """All the files' Examples as one Arrow table. Options as for `read_batches`."""
    import pyarrow as pa  # noqa: PLC0415

    files = expand(paths)
    schema = find_schema(files, schema)
    chosen = schema if options.get("columns") is None else schema.select(list(options["columns"]))
    return pa.Table.from_batches(read_batches(files, schema, **options), chosen.to_arrow())


def read_arrays(
    paths: Paths, schema: Schema | None = None, **options: Any
) -> dict[str, np.ndarray[Any, Any]]:
    """All the files' Examples as NumPy arrays, one for each feature.

    Single values become an array of one dimension, fixed numbers of them one of two; ragged
    features and feature lists an array of objects, in which a missing one is None. A missing
    number is an error, as no number stands for it: leave the feature out with `columns`.
    """
    table = read_table(paths, schema, **options)
    return {name: column_to_numpy(name, table.column(name)) for name in table.column_names}


def column_to_numpy(name: str, column: pa.ChunkedArray | pa.Array) -> np.ndarray[Any, Any]:
    """An Arrow column as NumPy has it; see `read_arrays`."""
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    type_ = column.type
    is_fixed = pa.types.is_fixed_size_list(type_)
    leaf = type_.value_type if is_fixed else type_
    is_number = pa.types.is_integer(leaf) or pa.types.is_floating(leaf)
    if is_number and column.null_count:
        raise DataError(f"feature {name!r} is missing in {column.null_count} examples, and an "
                        "array of numbers cannot leave a place empty")  # fmt: skip
    if is_fixed and is_number:
        return np.asarray(column.flatten()).reshape(len(column), type_.list_size)
    if is_number:
        return np.asarray(column)
    result = np.empty(len(column), object)
    if pa.types.is_list(type_) and not pa.types.is_list(leaf := type_.value_type) and (
        pa.types.is_integer(leaf) or pa.types.is_floating(leaf)
    ):  # fmt: skip
        result[:] = [None if item is None else item.values.to_numpy() for item in _scalars(column)]
    else:
        result[:] = column.to_pylist()
    return result


def _scalars(column: pa.Array) -> Iterator[Any]:
    for item in column:
        yield item if item.is_valid else None


def read_rows(
    paths: Paths, schema: Schema | None = None, **options: Any
) -> Iterator[dict[str, Any]]:
    """The files' Examples one by one, as dictionaries of Python values."""
    for batch in read_batches(paths, schema, **options):
        yield from batch.to_pylist()


def decode_examples(messages: Sequence[bytes], schema: Schema | None = None) -> pa.RecordBatch:
    """Messages that are in memory as an Arrow batch. Without a schema theirs is found first."""
    from array import array  # noqa: PLC0415

    from phalanx.records.arrow import to_batch  # noqa: PLC0415

    spans, at = array("q"), 0
    for message in messages:
        spans.extend((at, len(message)))
        at += len(message)
    chunk = Chunk(memoryview(b"".join(messages)), memoryview(spans), 0, 12)
    if schema is None:
        schema = summarize_chunk(chunk).schema
    return to_batch(decode_chunk("<memory>", chunk, schema), len(messages), schema)


def encode_examples(data: Columns) -> list[bytes]:
    """Columns or rows as messages: Examples, or SequenceExamples if there are lists of lists."""
    return [bytes(message) for message in _messages(data)]


def encode_batch(
    batch: pa.RecordBatch, *, framed: bool = True, kinds: Kinds | None = None
) -> tuple[Any, Any]:
    """A batch as messages, one after the other, in TFRecord frames or not; and where each ends.

    `kinds` are those of the batches before it, which this one then keeps to.
    """
    from phalanx.records.arrow import Kinds, to_source_columns  # noqa: PLC0415

    kinds = kinds or Kinds()
    columns = to_source_columns(batch, kinds)
    kinds.rows += batch.num_rows
    sequence = any(column.sequence for column in columns)
    return codec.encode(columns, batch.num_rows, sequence, framed)


def _encode(data: Columns, *, framed: bool) -> Iterator[tuple[Any, Any]]:
    """The data, encoded batch by batch."""
    from phalanx.records.arrow import Kinds  # noqa: PLC0415

    kinds = Kinds()
    for batch in to_batches(data):
        yield encode_batch(batch, framed=framed, kinds=kinds)


def _messages(data: Columns) -> Iterator[memoryview]:
    """The data, encoded message by message."""
    for block, ends in _encode(data, framed=False):
        view, start = memoryview(block).cast("B"), 0
        for end in memoryview(ends).cast("B").cast("q"):
            yield view[start:end]
            start = end


def write_examples(
    path: str | os.PathLike[str],
    data: Columns,
    *,
    shards: int | None = None,
    compression: Compression | None = None,
    append: bool = False,
) -> int:
    """Write columns or rows as Examples; how many is returned.

    `data` is an Arrow table or batches, a dictionary of NumPy arrays or lists, or rows as
    dictionaries. With `shards` they are dealt out to so many files.
    """
    if shards is not None:
        if append:
            raise DataError("shards cannot be appended to: write new ones beside them")
        with ShardedWriter(path, shards, compression=compression) as sharded:
            for message in _messages(data):
                sharded.write(message)
            return sharded.count
    with RecordWriter(path, compression=compression, append=append) as writer:
        for block, ends in _encode(data, framed=True):
            writer.write_framed(block, memoryview(ends).nbytes // 8)
        return writer.count


def to_batches(data: Columns) -> Iterator[pa.RecordBatch]:
    """Whatever `write_examples` takes, as Arrow batches."""
    import pyarrow as pa  # noqa: PLC0415

    from phalanx.records.arrow import empty_rows  # noqa: PLC0415

    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    elif isinstance(data, Mapping):
        columns = {name: _to_arrow(name, values) for name, values in data.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(f"the columns must have the same number of rows, and have {lengths}")
        data = pa.table(columns)
    if isinstance(data, pa.Table):
        yield from data.to_batches(max_chunksize=BATCH_SIZE)
        return
    items = iter(data)
    for first in items:
        if isinstance(first, pa.RecordBatch):
            yield first
            continue
        rows = [first, *islice(items, BATCH_SIZE - 1)]
        names = dict.fromkeys(chain.from_iterable(rows))
        columns = {name: _to_arrow(name, [row.get(name) for row in rows]) for name in names}
        yield pa.RecordBatch.from_pydict(columns) if names else empty_rows(len(rows))


def _to_arrow(name: str, values: Any) -> pa.Array:
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415

    if isinstance(values, (pa.Array, pa.ChunkedArray)):
        return values
    if isinstance(values, np.ndarray) and values.ndim > 1:
        flat = values.reshape(len(values), math.prod(values.shape[1:]))
        return pa.FixedSizeListArray.from_arrays(pa.array(flat.ravel()), flat.shape[1])
    try:
        return pa.array(values)
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
    ) as error:
        raise DataError(f"column {name!r} cannot become a feature: {error}") from None
