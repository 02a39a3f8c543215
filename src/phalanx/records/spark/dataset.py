"""Directories of TFRecord files as one table: their files, columns, splits and batches.

The offset of a stream is the files it has read, as Spark stores them in its checkpoint. Files are
identified by their paths, so that a new file with an old date is read too. To bound the size of an
offset, files older than a limit are dropped from it and never read.
"""

import base64
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from phalanx.errors import DataError
from phalanx.records.arrow import empty_rows, to_batch
from phalanx.records.compression import Compression, detect_compression
from phalanx.records.framing import Chunk, Part, read_chunks
from phalanx.records.index import RecordIndex
from phalanx.records.schema import Schema, decode_chunk, find_schema
from phalanx.records.spark.columns import (
    BYTE_ARRAY,
    RecordType,
    features_of,
    from_features,
    infer_columns,
)
from phalanx.records.spark.options import Options
from phalanx.records.spark.partitions import (
    PartitionValues,
    partition_types,
    partition_value,
    partition_values,
)
from phalanx.records.storage import is_remote, open_input
from phalanx.records.storage.listing import FoundFile, find_files

OPEN_COST = 4 << 20
"""The cost of opening a file, in bytes read: many small files make few tasks."""

_MIN_TASKS = 64
_HASH_SIZE = 8

Files = list[tuple[FoundFile, PartitionValues]]


def find_dataset(options: Options) -> Files:
    if not options.paths:
        raise DataError("give the files to read, as in load('data/*.tfrecord')")
    return [
        (file, partition_values(_subdirectory(file, options))) for file in find_files(options.paths)
    ]


def _subdirectory(file: FoundFile, options: Options) -> str:
    if options.base_path is None:
        return file.subdirectory
    if not file.path.startswith(f"{options.base_path}/"):
        raise DataError(f"{file.path} is not in the basePath {options.base_path}")
    return file.path.removeprefix(options.base_path).strip("/").rpartition("/")[0]


def infer_dataset(options: Options, files: Files) -> pa.Schema:
    """The columns of the files and, after them, the partition columns."""
    types = partition_types(values for _, values in files)
    if options.record_type is RecordType.BYTE_ARRAY:
        inferred = pa.schema([pa.field(BYTE_ARRAY, pa.binary())])
    else:
        features = _infer_features(options, [file.path for file, _ in files])
        inferred = infer_columns(features, options.binary_columns)
    fields = [field for field in inferred if field.name not in types]
    fields += [pa.field(name, type_) for name, type_ in types.items()]
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
    where, hint = ", ".join(options.paths), "to infer the columns from: give a schema"
    if not paths:
        raise DataError(f"there are no files in {where} {hint}")
    schema = find_schema(list(paths), most=options.infer_records)
    if not schema.features:
        raise DataError(f"there are no features in {where} {hint}")
    if schema.is_sequence and options.record_type is RecordType.EXAMPLE:
        raise DataError(
            f"{where} holds SequenceExamples: set the option recordType to SequenceExample"
        )
    return schema


@dataclass(frozen=True)
class Split:
    path: str
    size: int
    part: Part | None
    values: PartitionValues


def plan_splits(files: Files, split_bytes: int) -> list[tuple[Split, ...]]:
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
    parts = [] if file.size <= split_bytes * 1.1 else list(_find_parts(file, split_bytes))
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
    for offset, number in _find_offsets(file.path, index):
        if offset - start >= split_bytes:
            yield Part(start, offset, first)
            start, first = offset, number
    if start < file.size:
        yield Part(start, file.size, first)


def _find_offsets(path: str, index: RecordIndex | None) -> Iterator[tuple[int, int]]:
    """The offset and number of indexed records, or of the first of each chunk of about 1 MB."""
    if index is not None:
        yield from zip(index.offsets[:-1], range(0, index.count, index.stride), strict=True)
        return
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
            partition_value(field.name, values[field.name], field.type),
            batch.num_rows,
        )
        if field.name in values
        else batch.column(field.name)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns) if arrays else batch


@dataclass(frozen=True)
class StreamOffset:
    """The files that were read: those older than `since`, and those whose hash is in `hashes`."""

    hashes: frozenset[bytes] = frozenset()
    since: float = 0.0

    def covers(self, file: FoundFile) -> bool:
        """Was the file read, or is it too old to be read?"""
        return file.modified < self.since or _hash(file.path) in self.hashes

    def add(self, new: list[FoundFile], found: Iterable[FoundFile], max_age: float) -> Self:
        """The offset after the files `new`; of all files `found`, those too old are dropped."""
        newest = max((file.modified for file in new), default=0.0)
        since = max(self.since, newest - max_age)
        old = {_hash(file.path) for file in found if file.modified < since}
        return type(self)(self.hashes - old | {_hash(file.path) for file in new}, since)

    def dump(self) -> dict[str, str]:
        joined = b"".join(sorted(self.hashes))
        return {"seen": base64.b64encode(joined).decode(), "since": repr(self.since)}

    @classmethod
    def load(cls, offset: dict[str, str]) -> Self:
        try:
            joined = base64.b64decode(offset["seen"])
            since = float(offset["since"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the checkpoint is not one of format('tfrecord'): {error!r}") from None
        starts = range(0, len(joined), _HASH_SIZE)
        return cls(frozenset(joined[start : start + _HASH_SIZE] for start in starts), since)


def select_files_between(
    start: StreamOffset, end: StreamOffset, files: Iterable[FoundFile]
) -> list[FoundFile]:
    """The files that are in `end` and not in `start`, the oldest first."""
    wanted = end.hashes - start.hashes
    chosen = {hashed: file for file in files if (hashed := _hash(file.path)) in wanted}
    if len(chosen) < len(wanted):
        raise DataError(
            f"{len(wanted) - len(chosen)} of {len(wanted)} files that the stream was about to read "
            "no longer exist: restore them, or start with a new checkpoint"
        )
    return sort_by_age(chosen.values())


def sort_by_age(files: Iterable[FoundFile]) -> list[FoundFile]:
    return sorted(files, key=lambda file: (file.modified, file.path))


def _hash(path: str) -> bytes:
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=_HASH_SIZE).digest()
