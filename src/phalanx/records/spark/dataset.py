"""Directories of TFRecord files as one table: their files, columns, splits and batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from phalanx.errors import DataError
from phalanx.records.arrow import empty_rows, to_batch
from phalanx.records.compression import Compression, detect_compression
from phalanx.records.framing import Chunk, Part, read_chunks
from phalanx.records.index import RecordIndex
from phalanx.records.schema import Schema
from phalanx.records.spark import partitions
from phalanx.records.spark.columns import (
    BYTE_ARRAY,
    RecordType,
    features_of,
    from_features,
    infer_columns,
)
from phalanx.records.spark.options import Options
from phalanx.records.spark.partitions import PartitionValues
from phalanx.records.storage import is_remote, open_input
from phalanx.records.storage.listing import FoundFile, find_files
from phalanx.records.summary import decode_chunk, find_schema

OPEN_COST = 4 << 20
"""The cost of opening a file, in bytes read: many small files make few tasks."""

_MIN_TASKS = 64

Files = list[tuple[FoundFile, PartitionValues]]


def find_dataset(options: Options) -> Files:
    """The files, and the values in their partition directories."""
    if not options.paths:
        raise DataError("give the files to read, as in load('data/*.tfrecord')")
    return [
        (file, partitions.partition_values(_subdirectory(file, options)))
        for file in find_files(options.paths)
    ]


def _subdirectory(file: FoundFile, options: Options) -> str:
    if options.base_path is None:
        return file.subdirectory
    if not file.path.startswith(f"{options.base_path}/"):
        raise DataError(f"{file.path} is not in the basePath {options.base_path}")
    return file.path.removeprefix(options.base_path).strip("/").rpartition("/")[0]


def infer_dataset(options: Options, files: Files) -> pa.Schema:
    """The columns of the files and, after them, the partition columns."""
    partition_types = partitions.partition_types(values for _, values in files)
    if options.record_type is RecordType.BYTE_ARRAY:
        inferred = pa.schema([pa.field(BYTE_ARRAY, pa.binary())])
    else:
        features = _infer_features(options, [file.path for file, _ in files])
        inferred = infer_columns(features, options.binary_columns)
    fields = [field for field in inferred if field.name not in partition_types]
    fields += [pa.field(name, type_) for name, type_ in partition_types.items()]
    if options.columns is not None:
        by_name = {field.name: field for field in fields}
        missing = [name for name in options.columns if name not in by_name]
        if missing:
            raise DataError(
                f"there is no column {', '.join(missing)}: there are {', '.join(by_name)}"
            )
        fields = [by_name[name] for name in options.columns]
    return pa.schema(fields)


def _infer_features(options: Options, paths: Sequence[str]) -> Schema:
    where = ", ".join(options.paths)
    if not paths:
        raise DataError(f"there are no files in {where} to infer the columns from: give a schema")
    schema = find_schema(list(paths), most=options.infer_records)
    if not schema.features:
        raise DataError(
            f"there are no features in {where} to infer the columns from: give a schema"
        )
    if schema.is_sequence and options.record_type is RecordType.EXAMPLE:
        raise DataError(
            f"{where} holds SequenceExamples: set the option recordType to SequenceExample"
        )
    return schema


@dataclass(frozen=True)
class Split:
    """A file, or a part of it, and the values in its partition directories."""

    path: str
    size: int
    part: Part | None
    values: PartitionValues


def plan_splits(
    files: Iterable[tuple[FoundFile, PartitionValues]], split_bytes: int
) -> list[tuple[Split, ...]]:
    """The splits that each task reads, in the order of the files.

    Small files are combined as long as enough tasks remain. Large files are split at a record, so
    that no task reads much more than `split_bytes`.
    """
    splits = [
        Split(file.path, size, part, values)
        for file, values in files
        for size, part in _split_file(file, split_bytes)
    ]
    total = sum(split.size + OPEN_COST for split in splits)
    target = max(OPEN_COST, min(split_bytes, total // _MIN_TASKS))
    tasks: list[list[Split]] = []
    filled = 0
    for split in splits:
        if not tasks or filled + split.size > target:
            tasks.append([])
            filled = 0
        tasks[-1].append(split)
        filled += split.size + OPEN_COST
    return [tuple(task) for task in tasks]


def _split_file(file: FoundFile, split_bytes: int) -> Iterator[tuple[int, Part | None]]:
    if file.size <= split_bytes * 1.1:
        yield file.size, None
        return
    parts = list(_find_parts(file, split_bytes))
    if len(parts) < 2:
        yield file.size, None
        return
    for part in parts:
        yield part.stop - part.start, part


def _find_parts(file: FoundFile, split_bytes: int) -> Iterator[Part]:
    """Split a file into parts of about `split_bytes` bytes.

    A compressed file cannot be split. A remote file without an index is not split, because it would
    have to be fetched as a whole to find where records begin.
    """
    with open_input(file.path) as opened:
        if detect_compression(opened) is not Compression.NONE:
            return
    index = RecordIndex.load(file.path)
    if index is None and is_remote(file.path):
        return
    start = first = 0
    for offset, number in _offsets(index) if index else _scan_offsets(file.path):
        if offset - start >= split_bytes:
            yield Part(start, offset, first)
            start, first = offset, number
    if start < file.size:
        yield Part(start, file.size, first)


def _offsets(index: RecordIndex) -> Iterator[tuple[int, int]]:
    for number, offset in enumerate(index.offsets[:-1]):
        yield offset, number * index.stride


def _scan_offsets(path: str) -> Iterator[tuple[int, int]]:
    """The offset and number of the first record of each chunk of about 1 MB."""
    for chunk in read_chunks(path, compression=Compression.NONE, check=False):
        yield chunk.offset, chunk.index


def read_split(
    split: Split, columns: pa.Schema, record_type: RecordType
) -> Iterator[pa.RecordBatch]:
    """Read the records of a split as batches of exactly these columns."""
    stored = pa.schema([field for field in columns if field.name not in split.values])
    schema = None if record_type is RecordType.BYTE_ARRAY else features_of(stored, record_type)
    for chunk in read_chunks(split.path, part=split.part):
        try:
            batch = _decode(split.path, chunk, schema, stored)
            yield _add_partition_columns(batch, split.values, columns) if split.values else batch
        except DataError as error:
            raise DataError(f"{split.path}: {error}") from None


def _decode(path: str, chunk: Chunk, schema: Schema | None, stored: pa.Schema) -> pa.RecordBatch:
    if not stored.names:
        return empty_rows(len(chunk))
    if schema is None:
        array = pa.array(list(chunk), stored.field(0).type)
        return pa.RecordBatch.from_arrays([array], schema=stored)
    decoded = to_batch(decode_chunk(path, chunk, schema), len(chunk), schema)
    return from_features(decoded, stored)


def _add_partition_columns(
    batch: pa.RecordBatch, values: PartitionValues, columns: pa.Schema
) -> pa.RecordBatch:
    arrays = [
        pa.repeat(
            partitions.partition_value(field.name, values[field.name], field.type), batch.num_rows
        )
        if field.name in values
        else batch.column(field.name)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns) if arrays else batch
