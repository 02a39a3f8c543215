"""A source for TFRecord files."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from typing import BinaryIO, cast

import numpy as np
import pyarrow as pa

from phalanx.data.sources import FileSet, Source, block_for
from phalanx.data.types import Array, Column, Columns, Default, Indices, Ranges
from phalanx.errors import DataError, RecordError
from phalanx.records import (
    Chunk,
    Compression,
    Feature,
    Kind,
    RecordIndex,
    Schema,
    expand,
    open_index,
    read_chunks,
)
from phalanx.records.arrow import to_batch
from phalanx.records.codec import RAGGED, FrameStatus, codec
from phalanx.records.compression import detect_compression
from phalanx.records.example import column_to_numpy
from phalanx.records.index import explain
from phalanx.records.storage import is_remote, open_input, read_range
from phalanx.records.summary import decode_chunk, find_schema
from phalanx.records.types import Paths

_THREADS = 8


@dataclass(frozen=True)
class RecordSource(Source):
    """Examples in TFRecord files, local or remote.

    Compressed files are decompressed once to temporary files, to be read in any order.

    Attributes:
        files: The files.
        schema: The features to decode.
        raw: The dtype of features whose bytes are numbers, as in `{"image": "uint8"}`.
        defaults: Values that replace features that an example lacks.
    """

    files: tuple[str, ...]
    schema: Schema
    raw: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Default] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        paths: Paths,
        schema: Schema | None = None,
        *,
        columns: Sequence[str] | None = None,
        raw: Mapping[str, str] | None = None,
        defaults: Mapping[str, Default] | None = None,
    ) -> RecordSource:
        """Open TFRecord files.

        Args:
            paths: The files, as for `records.expand`.
            schema: The schema, by default as for `records.read_batches`.
            columns: The features to decode, by default all of the schema.
            raw: The dtype of features whose bytes are numbers, as in `{"image": "uint8"}`.
            defaults: Values that replace features that an example lacks.

        Returns:
            The source.

        Raises:
            DataError: There is no such feature, or it cannot be read as `raw`.
        """
        files = expand(paths)
        schema = find_schema(files, schema)
        if columns is not None:
            schema = schema.select(list(columns))
        for name in defaults or ():
            schema[name]
        for name, dtype in (raw or {}).items():
            _check_raw(schema[name], dtype)
        return cls(tuple(files), schema, dict(raw or {}), dict(defaults or {}))

    @cached_property
    def _files(self) -> FileSet[_RecordFile]:
        with ThreadPoolExecutor(_THREADS) as pool:
            return FileSet(tuple(pool.map(_open_record_file, self.files)))

    def __len__(self) -> int:
        return len(self._files)

    @property
    def block(self) -> int:
        size = sum(file.index.size for file in self._files.files)
        return block_for(size / max(len(self), 1), is_remote(self.files[0]))

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        located = self._files.locate(ranges)
        parts = [_FilePart(file, *part) for file, parts in located for part in parts]
        batch = _decode(parts, picks, self.schema)
        return {f.name: self._column(f, batch.column(f.name)) for f in self.schema.features}

    def _column(self, feature: Feature, values: pa.Array) -> Column:
        if values.null_count and feature.name in self.defaults:
            values = values.fill_null(self.defaults[feature.name])
        if values.null_count and (feature.width == RAGGED):
            values = values.fill_null([])
        if values.null_count:
            raise DataError(
                f"feature {feature.name!r} is missing in {values.null_count} of {len(values)} "
                f"examples: give a default, as in defaults={{{feature.name!r}: 0}}"
            )
        if feature.name in self.raw:
            return _as_numbers(feature.name, values, self.raw[feature.name])
        if feature.kind is not Kind.BYTES and feature.width != RAGGED:
            return column_to_numpy(feature.name, values)
        return values


def _check_raw(feature: Feature, dtype: str) -> None:
    if feature.kind is not Kind.BYTES or feature.shape or feature.sequence:
        raise DataError(f"feature {feature.name!r} cannot be read as {dtype}: it is "
                        f"{feature.describe()}, and raw is for one value of bytes")  # fmt: skip
    try:
        np.dtype(dtype)
    except TypeError as error:
        raise DataError(f"feature {feature.name!r} cannot be read as {dtype}: {error}") from None


def _as_numbers(name: str, values: pa.Array, dtype: str) -> Array:
    """Convert byte strings of equal length to rows of numbers."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[
        values.offset : values.offset + len(values) + 1
    ]
    lengths = np.unique(np.diff(offsets))
    size = np.dtype(dtype).itemsize
    if len(lengths) != 1 or lengths[0] % size:
        raise DataError(f"feature {name!r} cannot be read as {dtype}: its values have lengths of "
                        f"{lengths.min()} to {lengths.max()} bytes")  # fmt: skip
    data = np.frombuffer(values.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    return data.view(dtype).reshape(len(values), -1)


@dataclass(frozen=True)
class _RecordFile:
    """A TFRecord file and its index; `decompressed` holds the data of a compressed file."""

    index: RecordIndex
    decompressed: BinaryIO | None = None

    def __len__(self) -> int:
        return len(self.index)

    def read_into(self, targets: list[tuple[int, memoryview]]) -> list[int]:
        """Read from each offset into its memory, and return the numbers of bytes read."""
        if self.decompressed is not None:
            return [os.preadv(self.decompressed.fileno(), [part], at) for at, part in targets]
        if is_remote(self.index.path):
            with ThreadPoolExecutor(_THREADS) as pool:
                return list(pool.map(lambda target: self._fetch(*target), targets))
        with open_input(self.index.path) as file:
            return [os.preadv(file.fileno(), [part], at) for at, part in targets]

    def _fetch(self, offset: int, part: memoryview) -> int:
        data = read_range(self.index.path, offset, offset + len(part))
        part[: len(data)] = data
        return len(data)


@dataclass(frozen=True)
class _FilePart:
    """A range of one file's records."""

    file: _RecordFile
    begin: int
    end: int

    @property
    def offset(self) -> int:
        return self.file.index.offsets[self.begin]

    @property
    def size(self) -> int:
        return self.file.index.offsets[self.end] - self.file.index.offsets[self.begin]

    def scan(self, data: memoryview) -> Indices:
        """The offset and length of each record's data; every checksum is checked."""
        count = self.end - self.begin
        found, _, status, _ = codec.scan(data, 0, count, True)
        spans = np.frombuffer(memoryview(found), np.int64).reshape(-1, 2)
        if len(spans) < count:
            raise self.error(len(spans), explain(FrameStatus(status)))
        return cast(Indices, spans)

    def error(self, number: int, reason: str) -> RecordError:
        index, number = self.file.index, self.begin + number
        return RecordError(index.path, number, index.offsets[number], reason)


def _open_record_file(path: str) -> _RecordFile:
    with open_input(path) as file:
        compression = detect_compression(file)
    if compression is Compression.NONE:
        index = open_index(path)
        # An index saved with a larger stride lacks offsets.
        return _RecordFile(index if index.stride == 1 else RecordIndex.build(path))
    # A file without a name is deleted when this process ends, however it ends.
    decompressed = tempfile.TemporaryFile()  # noqa: SIM115
    offsets = array("q")
    for chunk in read_chunks(path, compression=compression, check=False):
        offsets.extend(chunk.offset_of(number) for number in range(len(chunk)))
        decompressed.write(chunk.data)
    decompressed.flush()
    offsets.append(decompressed.tell())
    return _RecordFile(RecordIndex(path, offsets[-1], len(offsets) - 1, 1, offsets), decompressed)


def _decode(parts: list[_FilePart], picks: Indices, schema: Schema) -> pa.RecordBatch:
    """Read all parts into one block of memory, and decode the records `picks` in that order."""
    ends = list(accumulate(part.size for part in parts))
    memory = memoryview(np.empty(ends[-1], np.uint8).data)
    targets = [memory[end - part.size : end] for part, end in zip(parts, ends, strict=True)]
    sizes: list[int] = []
    for _, group in groupby(zip(parts, targets, strict=True), key=lambda pair: id(pair[0].file)):
        same = list(group)
        sizes += same[0][0].file.read_into([(part.offset, target) for part, target in same])
    spans = np.concatenate([
        part.scan(target[:size]) + np.array((end - part.size, 0))
        for part, target, size, end in zip(parts, targets, sizes, ends, strict=True)
    ])  # fmt: skip
    chosen = np.ascontiguousarray(spans[picks])
    chunk = Chunk(memory, chosen.data.cast("B").cast("q"), 0, 0)
    try:
        return to_batch(decode_chunk("", chunk, schema), len(chunk), schema)
    except RecordError as error:
        number = int(picks[error.index])
        for part in parts:
            if number < part.end - part.begin:
                raise part.error(number, error.reason) from None
            number -= part.end - part.begin
        raise
