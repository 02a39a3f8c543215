"""Examples and SequenceExamples from and to Arrow, NumPy and Python rows.

A feature that a record lacks is null (None). A feature list of a SequenceExample is a column of
lists of lists, and a column of lists of lists becomes a feature list.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypedDict, Unpack

from phalanx.errors import DataError
from phalanx.records.codec import codec
from phalanx.records.compression import Compression
from phalanx.records.framing import Chunk, read_chunks
from phalanx.records.schema import Schema, decode_chunk, find_schema, summarize_chunk
from phalanx.records.storage.listing import expand
from phalanx.records.types import Array, Buffer, Examples, Paths, Row
from phalanx.records.writer import RecordWriter, ShardedWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from phalanx.records.arrow import Kinds


class ReadOptions(TypedDict, total=False):
    batch_size: int | None
    columns: Sequence[str] | None
    compression: Compression | None
    check: bool


def read_batches(
    paths: Paths,
    schema: Schema | None = None,
    *,
    batch_size: int | None = None,
    columns: Sequence[str] | None = None,
    compression: Compression | None = None,
    check: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Read Examples as Arrow batches.

    Args:
        paths: The files, as for `expand`.
        schema: The features; by default saved beside the files, or else inferred by reading them.
        batch_size: The rows of each batch but the last of a file; by default about 1 MB of records.
        columns: The features to decode, by default all of the schema.
        compression: How the files are compressed; detected by default.
        check: Whether to check the checksums of the data.

    Returns:
        An iterator over batches with a column for each feature.

    Raises:
        RecordError: A record is damaged, or does not fit the schema.
    """
    from phalanx.records.arrow import to_batch  # noqa: PLC0415

    if batch_size is not None and batch_size < 1:
        raise DataError(f"batch_size is {batch_size}: set it to 1 or more")
    files = expand(paths)
    schema = find_schema(files, schema)
    if columns is not None:
        schema = schema.select(list(columns))

    for path in files:
        for chunk in read_chunks(path, most=batch_size, compression=compression, check=check):
            yield to_batch(decode_chunk(path, chunk, schema), len(chunk), schema)


def read_table(
    paths: Paths, schema: Schema | None = None, **options: Unpack[ReadOptions]
) -> pa.Table:
    """Read all Examples as one Arrow table.

    Args:
        paths: The files, as for `expand`.
        schema: The features to decode, as for `read_batches`.
        **options: The other options of `read_batches`.

    Returns:
        The table, with a column for each feature.
    """
    import pyarrow as pa  # noqa: PLC0415

    files = expand(paths)
    schema = find_schema(files, schema)
    columns = options.get("columns")
    chosen = schema if columns is None else schema.select(list(columns))
    return pa.Table.from_batches(read_batches(files, schema, **options), chosen.to_arrow())


def read_arrays(
    paths: Paths, schema: Schema | None = None, **options: Unpack[ReadOptions]
) -> dict[str, Array]:
    """Read all Examples as NumPy arrays.

    Args:
        paths: The files, as for `expand`.
        schema: The features to decode, as for `read_batches`.
        **options: The other options of `read_batches`.

    Returns:
        An array for each feature. Single values become one dimension, a fixed number of values
        two. Ragged features and feature lists become arrays of objects, None where missing.

    Raises:
        DataError: A number is missing in an example; leave the feature out with `columns`.
    """
    from phalanx.records.arrow import column_to_numpy  # noqa: PLC0415

    table = read_table(paths, schema, **options)
    return {name: column_to_numpy(name, table.column(name)) for name in table.column_names}


def read_rows(
    paths: Paths, schema: Schema | None = None, **options: Unpack[ReadOptions]
) -> Iterator[Row]:
    """Read Examples one by one.

    Args:
        paths: The files, as for `expand`.
        schema: The features to decode, as for `read_batches`.
        **options: The other options of `read_batches`.

    Returns:
        An iterator over dictionaries of Python values.
    """
    for batch in read_batches(paths, schema, **options):
        yield from batch.to_pylist()


def decode_examples(messages: Sequence[bytes], schema: Schema | None = None) -> pa.RecordBatch:
    """Decode serialized Examples.

    Args:
        messages: The serialized Examples or SequenceExamples.
        schema: The features to decode; inferred from the messages by default.

    Returns:
        A batch with a row for each message.
    """
    from phalanx.records.arrow import to_batch  # noqa: PLC0415

    spans, at = array("q"), 0
    for message in messages:
        spans.extend((at, len(message)))
        at += len(message)
    chunk = Chunk(memoryview(b"".join(messages)), memoryview(spans), 0, 12)
    if schema is None:
        schema = summarize_chunk(chunk).schema
    return to_batch(decode_chunk("<memory>", chunk, schema), len(messages), schema)


def encode_examples(data: Examples) -> list[bytes]:
    """Encode columns or rows as messages.

    Args:
        data: The examples, as for `write_examples`.

    Returns:
        Serialized Examples, or SequenceExamples if a column has lists of lists.
    """
    return [bytes(message) for message in _encode_messages(data)]


def encode_batch(
    batch: pa.RecordBatch, *, framed: bool = True, kinds: Kinds | None = None
) -> tuple[Buffer, Buffer]:
    """Encode an Arrow batch as consecutive messages.

    Args:
        batch: The examples.
        framed: Whether to write each message in a TFRecord frame.
        kinds: The kinds of the batches before this one in the same file, updated by this one.

    Returns:
        The bytes, and the offset at which each message ends, as int64.
    """
    from phalanx.records.arrow import Kinds, to_source_columns  # noqa: PLC0415

    kinds = kinds or Kinds()
    columns = to_source_columns(batch, kinds)
    kinds.rows += batch.num_rows
    sequence = any(column.sequence for column in columns)
    return codec.encode(columns, batch.num_rows, sequence, framed)


def _encode_batches(data: Examples, *, framed: bool) -> Iterator[tuple[Buffer, Buffer]]:
    from phalanx.records.arrow import Kinds, to_batches  # noqa: PLC0415

    kinds = Kinds()
    for batch in to_batches(data):
        yield encode_batch(batch, framed=framed, kinds=kinds)


def _encode_messages(data: Examples) -> Iterator[memoryview]:
    for block, ends in _encode_batches(data, framed=False):
        view, offsets = memoryview(block).cast("B"), memoryview(ends).cast("B").cast("q")
        yield from (view[start:end] for start, end in pairwise(chain([0], offsets)))


def write_examples(
    path: str | os.PathLike[str],
    data: Examples,
    *,
    shards: int | None = None,
    compression: Compression | None = None,
    append: bool = False,
) -> int:
    """Write columns or rows as Examples, or as SequenceExamples if there are lists of lists.

    Args:
        path: The file to write, or the path without the numbers of the shards.
        data: An Arrow table or batches, a dictionary of arrays or lists, or rows as dictionaries.
        shards: The number of files to distribute the examples over; by default one file.
        compression: How to compress the files; by default by their name.
        append: Whether to begin with the records of an existing file.

    Returns:
        The number of examples written.

    Raises:
        DataError: A column cannot be stored as a feature.
    """
    if shards is not None:
        if append:
            raise DataError("shards cannot be appended to: write new ones beside them")
        with ShardedWriter(path, shards, compression=compression) as sharded:
            for message in _encode_messages(data):
                sharded.write(message)
            return sharded.count
    with RecordWriter(path, compression=compression, append=append) as writer:
        for block, ends in _encode_batches(data, framed=True):
            writer.write_framed(block, memoryview(ends).nbytes // 8)
        return writer.count
