"""Examples in TFRecord files, read in any order."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa

from phalanx.data.order import Indices
from phalanx.data.sources import Column, Columns, FileSet, Ranges, block_for
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

_THREADS = 8


@dataclass(frozen=True)
class RecordSource:
    """Examples in TFRecord files, on this machine or elsewhere.

    `raw` tells the type of features whose bytes are really numbers, as in `{"image": "uint8"}`:
    they come as arrays. `defaults` stand in for features that an example lacks. Compressed files
    are unpacked once to temporary ones, since examples are not read in their order.
    """

    files: tuple[str, ...]
    schema: Schema
    raw: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        paths: Any,
        schema: Schema | None = None,
        *,
        columns: Sequence[str] | None = None,
        raw: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> RecordSource:
        """The records that paths and globs name; without a schema they are read once to find it."""
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
        """As many records as there are in a read that is worth its while."""
        size = sum(file.index.size for file in self._files.files)
        return block_for(size / max(len(self), 1), is_remote(self.files[0]))

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        """Some of the examples of the ranges."""
        pieces = [_Piece(file, *part) for file, parts in self._files.cut(ranges) for part in parts]
        batch = _decode(pieces, picks, self.schema)
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


def _as_numbers(name: str, values: pa.Array, dtype: str) -> np.ndarray[Any, Any]:
    """Bytes of equal length as rows of numbers."""
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
    """A TFRecord file and where its records begin; `unpacked` holds it if it is compressed."""

    index: RecordIndex
    unpacked: BinaryIO | None = None

    def __len__(self) -> int:
        return len(self.index)

    def read_into(self, targets: list[tuple[int, memoryview]]) -> list[int]:
        """Fill memory with what is at these offsets; how many bytes there were is returned."""
        if self.unpacked is not None:
            return [os.preadv(self.unpacked.fileno(), [part], at) for at, part in targets]
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
class _Piece:
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
        """Where the records' data begins, and its length; every checksum is checked."""
        count = self.end - self.begin
        found, _, status, _ = codec.scan(data, 0, count, True)
        spans = np.frombuffer(memoryview(found), np.int64).reshape(-1, 2)
        if len(spans) < count:
            raise self.error(len(spans), explain(FrameStatus(status)))
        return cast(Indices, spans)

    def error(self, number: int, reason: str) -> RecordError:
        """What is wrong with the piece's record of that number."""
        index, number = self.file.index, self.begin + number
        return RecordError(index.path, number, index.offsets[number], reason)


def _open_record_file(path: str) -> _RecordFile:
    with open_input(path) as file:
        packing = detect_compression(file)
    if packing is Compression.NONE:
        index = open_index(path)
        # One that was saved with a larger stride lacks the offsets in between.
        return _RecordFile(index if index.stride == 1 else RecordIndex.build(path))
    # A file without a name: it is gone when this process is, however that ends.
    unpacked = tempfile.TemporaryFile()  # noqa: SIM115
    offsets = array("q")
    for chunk in read_chunks(path, compression=packing, check=False):
        offsets.extend(chunk.offset_of(number) for number in range(len(chunk)))
        unpacked.write(chunk.data)
    unpacked.flush()
    offsets.append(unpacked.tell())
    return _RecordFile(RecordIndex(path, offsets[-1], len(offsets) - 1, 1, offsets), unpacked)


def _decode(pieces: list[_Piece], picks: Indices, schema: Schema) -> pa.RecordBatch:
    """Records of some pieces: read into one stretch of memory, decoded in the order asked for."""
    ends = list(accumulate(piece.size for piece in pieces))
    memory = memoryview(np.empty(ends[-1], np.uint8).data)
    parts = [memory[end - piece.size : end] for piece, end in zip(pieces, ends, strict=True)]
    sizes: list[int] = []
    for _, group in groupby(zip(pieces, parts, strict=True), key=lambda pair: id(pair[0].file)):
        same = list(group)
        sizes += same[0][0].file.read_into([(piece.offset, part) for piece, part in same])
    spans = np.concatenate([
        piece.scan(part[:size]) + np.array((end - piece.size, 0))
        for piece, part, size, end in zip(pieces, parts, sizes, ends, strict=True)
    ])  # fmt: skip
    chosen = np.ascontiguousarray(spans[picks])
    chunk = Chunk(memory, chosen.data.cast("B").cast("q"), 0, 0)
    try:
        return to_batch(decode_chunk("", chunk, schema), len(chunk), schema)
    except RecordError as error:
        place = int(picks[error.index])
        for piece in pieces:
            if place < piece.end - piece.begin:
                raise piece.error(place, error.reason) from None
            place -= piece.end - piece.begin
        raise
