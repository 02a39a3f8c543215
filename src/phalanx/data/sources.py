"""Where examples come from: anything that has a length and can read ranges of its records."""

from __future__ import annotations

import os
import tempfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import accumulate, groupby
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from phalanx.data.order import Indices
from phalanx.errors import DataError, RecordError
from phalanx.records import Chunk, Feature, Kind, RecordIndex, Schema, expand, infer_schema, open_index
from phalanx.records.arrow import to_batch
from phalanx.records.codec import FrameStatus, codec
from phalanx.records.compression import Compression, Unpacker, detect_compression
from phalanx.records.example import column_to_numpy
from phalanx.records.schema import decode_chunk, saved_schema
from phalanx.records.storage import file_size, is_remote, open_input, read_range

Ranges = Sequence[tuple[int, int]]
Column = np.ndarray[Any, Any] | pa.Array
Columns = dict[str, Column]

_THREADS = 8
_LOCAL_BLOCK = 1 << 14
_REMOTE_BLOCK = 1 << 17


class Source(Protocol):
    """Examples that can be read in any order, many at a time."""

    def __len__(self) -> int: ...

    @property
    def block(self) -> int:
        """How many neighbours are worth reading at a time. The order of the examples hangs on it."""

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        """Some of the examples that the ranges hold when they are put one after the other.

        `picks` are their places and order; there is a column for each feature.
        """


@dataclass(frozen=True)
class RecordSource:
    """Examples in TFRecord files, on this machine or elsewhere.

    `raw` tells the type of features whose bytes are really numbers, as in `{"image": "uint8"}`: they
    come as arrays. `defaults` stand in for features that an example lacks. Compressed files are
    unpacked once to temporary ones, since examples are not read in their order.
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
        schema = schema or saved_schema(files) or infer_schema(files)
        if columns is not None:
            schema = schema.select(list(columns))
        for name in (*(raw or ()), *(defaults or ())):
            schema[name]  # noqa: B018 - an unknown name is an error
        return cls(tuple(files), schema, dict(raw or {}), dict(defaults or {}))

    @cached_property
    def _files(self) -> _Files[_RecordFile]:
        with ThreadPoolExecutor(_THREADS) as pool:
            return _Files(tuple(pool.map(_open_record_file, self.files)))

    def __len__(self) -> int:
        return len(self._files)

    @property
    def block(self) -> int:
        """As many records as there are in a read that is worth its while."""
        size = sum(file.index.size for file in self._files.files)
        return _block(size / max(len(self), 1), is_remote(self.files[0]))

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        """Some of the examples of the ranges."""
        pieces = [_Piece(file, *part) for file, parts in self._files.cut(ranges) for part in parts]
        batch = _decode(pieces, picks, self.schema)
        return {f.name: self._column(f, batch.column(f.name)) for f in self.schema.features}

    def _column(self, feature: Feature, values: pa.Array) -> Column:
        if values.null_count and feature.name in self.defaults:
            values = values.fill_null(self.defaults[feature.name])
        if values.null_count and (feature.width == -1):
            values = values.fill_null([])
        if values.null_count:
            raise DataError(
                f"feature {feature.name!r} is missing in {values.null_count} of {len(values)} "
                f"examples: give a default, as in defaults={{{feature.name!r}: 0}}"
            )
        if feature.name in self.raw:
            return _as_numbers(feature.name, values, self.raw[feature.name])
        if feature.kind is not Kind.BYTES and feature.width != -1:
            return column_to_numpy(feature.name, values)
        return values


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


class _Counted(Protocol):
    def __len__(self) -> int: ...


FileT = TypeVar("FileT", bound=_Counted)


@dataclass(frozen=True)
class _Files(Generic[FileT]):
    """Many files whose records are counted through."""

    files: tuple[FileT, ...]

    @cached_property
    def _begins(self) -> list[int]:
        return [0, *accumulate(len(file) for file in self.files)]

    def __len__(self) -> int:
        return self._begins[-1]

    def cut(self, ranges: Ranges) -> Iterator[tuple[FileT, list[tuple[int, int]]]]:
        """The ranges in terms of each file; neighbours that are in the same file stay together."""
        pieces = (piece for begin, end in ranges for piece in self._cut(begin, end))
        for number, group in groupby(pieces, key=lambda piece: piece[0]):
            yield self.files[number], [(begin, end) for _, begin, end in group]

    def _cut(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        number = bisect_right(self._begins, begin) - 1
        while begin < end:
            base, stop = self._begins[number], min(end, self._begins[number + 1])
            if begin < stop:
                yield number, begin - base, stop - base
            begin = max(begin, stop)
            number += 1


@dataclass(frozen=True)
class _RecordFile:
    """A TFRecord file and where its records begin; `unpacked` is its content if it is compressed."""

    index: RecordIndex
    unpacked: BinaryIO | None = None

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class _Piece:
    """A range of one file's records."""

    file: _RecordFile
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.file.index.offsets[self.end] - self.file.index.offsets[self.begin]

    def read_into(self, target: memoryview) -> int:
        """Read the bytes; how many there were is returned."""
        index, unpacked = self.file.index, self.file.unpacked
        offset = index.offsets[self.begin]
        if unpacked is not None:
            return os.preadv(unpacked.fileno(), [target], offset)
        if is_remote(index.path):
            data = read_range(index.path, offset, offset + len(target))
            target[: len(data)] = data
            return len(data)
        with open_input(index.path) as file:
            return os.preadv(file.fileno(), [target], offset)

    def scan(self, data: memoryview) -> Indices:
        """Where the records' data begins, and its length; every checksum is checked."""
        count = self.end - self.begin
        found, _, status, _ = codec.scan(data, 0, count, True)
        spans = np.frombuffer(found, np.int64).reshape(-1, 2)
        if len(spans) < count:
            reason = "the data does not fit its checksum"
            if status != FrameStatus.BAD_DATA:
                reason = "the file is not the one that was indexed"
            raise self.error(len(spans), reason)
        return spans

    def error(self, number: int, reason: str) -> RecordError:
        """What is wrong with the piece's record of that number."""
        index, number = self.file.index, self.begin + number
        return RecordError(index.path, number, index.offsets[number], reason)


def _open_record_file(path: str) -> _RecordFile:
    with open_input(path) as file:
        packing = detect_compression(file)
        if packing is Compression.NONE:
            return _RecordFile(open_index(path))
        # A file without a name: it is gone when this process is, however that ends.
        unpacked = tempfile.TemporaryFile()  # noqa: SIM115
        unpacker = Unpacker(file, packing)
        block = memoryview(bytearray(1 << 20))
        while size := unpacker.readinto(block):
            unpacked.write(block[:size])
    unpacked.flush()
    index = RecordIndex.build(f"/proc/self/fd/{unpacked.fileno()}")
    return _RecordFile(replace(index, path=path), unpacked)


def _decode(pieces: list[_Piece], picks: Indices, schema: Schema) -> pa.RecordBatch:
    """Records of some pieces: read into one stretch of memory, decoded in the order asked for."""
    ends = list(accumulate(piece.size for piece in pieces))
    memory = memoryview(np.empty(ends[-1], np.uint8))
    parts = [memory[end - piece.size : end] for piece, end in zip(pieces, ends, strict=True)]
    if is_remote(pieces[0].file.index.path):
        with ThreadPoolExecutor(_THREADS) as pool:
            sizes = list(pool.map(_Piece.read_into, pieces, parts))
    else:
        sizes = list(map(_Piece.read_into, pieces, parts))
    spans = np.concatenate([
        piece.scan(part[:size]) + (end - piece.size, 0)
        for piece, part, size, end in zip(pieces, parts, sizes, ends, strict=True)
    ])  # fmt: skip
    chosen = np.ascontiguousarray(spans[picks])
    chunk = Chunk(memory, memoryview(chosen).cast("B").cast("q"), 0, 0)
    try:
        return to_batch(decode_chunk("", chunk, schema), len(chunk), schema)
    except RecordError as error:
        place = int(picks[error.index])
        for piece in pieces:
            if place < piece.end - piece.begin:
                raise piece.error(place, error.reason) from None
            place -= piece.end - piece.begin
        raise


def _block(example_bytes: float, remote: bool = False) -> int:
    return max(1, round((_REMOTE_BLOCK if remote else _LOCAL_BLOCK) / max(example_bytes, 1)))


def _numbers(ranges: Ranges, picks: Indices) -> Indices:
    """The numbers of the records that the picks stand for."""
    return np.concatenate([np.arange(begin, end) for begin, end in ranges])[picks]


@dataclass(frozen=True)
class ArraySource:
    """Examples in memory: NumPy arrays with a row for each."""

    arrays: Mapping[str, np.ndarray[Any, Any]]

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.arrays.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"the arrays must have the same number of rows, and have {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    @property
    def block(self) -> int:
        """One: in memory every row is as near as the next."""
        return 1

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        """Some of the examples of the ranges."""
        numbers = _numbers(ranges, picks)
        return {name: values[numbers] for name, values in self.arrays.items()}


@dataclass(frozen=True)
class TableSource:
    """Examples in an Arrow table; a Parquet file that is memory-mapped, or CSV, becomes one."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def block(self) -> int:
        """As many rows as there are in a read that is worth its while."""
        return _block(self.table.nbytes / max(len(self), 1))

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        """Some of the examples of the ranges."""
        return _rows([self.table.slice(begin, end - begin) for begin, end in ranges], picks)


@dataclass(frozen=True)
class ParquetSource:
    """Examples in Parquet files: row groups are read when they are needed, and the last few kept.

    Files with row groups of some thousand rows suit a shuffled order; with groups of millions each
    read touches much more than it needs.
    """

    files: tuple[str, ...]

    @classmethod
    def open(cls, paths: Any) -> ParquetSource:
        """The files that paths and globs name."""
        return cls(tuple(expand(paths)))

    @cached_property
    def _groups(self) -> _Files[_RowGroup]:
        import pyarrow.parquet as pq  # noqa: PLC0415

        groups = []
        for path in self.files:
            try:
                with open_input(path) as file:
                    metadata = pq.ParquetFile(file).metadata
            except pa.ArrowInvalid as error:
                raise DataError(f"{path} is not a Parquet file: {error}") from None
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                groups.append(_RowGroup(path, number, group.num_rows, group.total_byte_size))
        return _Files(tuple(groups))

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def block(self) -> int:
        """As many rows as there are in a read that is worth its while."""
        size = sum(group.size for group in self._groups.files)
        return _block(size / max(len(self), 1), is_remote(self.files[0]))

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        """Some of the examples of the ranges."""
        tables = [
            _read_row_group(group).slice(begin, end - begin)
            for group, pieces in self._groups.cut(ranges)
            for begin, end in pieces
        ]
        return _rows(tables, picks)


@dataclass(frozen=True)
class _RowGroup:
    path: str
    number: int
    rows: int
    size: int

    def __len__(self) -> int:
        return self.rows


@lru_cache(maxsize=16)
def _read_row_group(group: _RowGroup) -> pa.Table:
    import pyarrow.parquet as pq  # noqa: PLC0415

    with open_input(group.path) as file:
        return pq.ParquetFile(file).read_row_group(group.number)


def read_csv(paths: Any) -> TableSource:
    """CSV files with a header, whole in memory."""
    from pyarrow import csv  # noqa: PLC0415

    tables = []
    for path in expand(paths):
        try:
            with open_input(path) as file:
                tables.append(csv.read_csv(file))
        except pa.ArrowInvalid as error:
            raise DataError(f"{path} is not a CSV file with a header: {error}") from None
    return TableSource(pa.concat_tables(tables))


def _rows(tables: list[pa.Table], picks: Indices) -> Columns:
    rows = pa.concat_tables(tables).combine_chunks().take(pa.array(picks))
    return {name: _plain_column(name, rows.column(name)) for name in rows.column_names}


def _plain_column(name: str, column: pa.ChunkedArray) -> Column:
    """Numbers as NumPy has them, text and lists as Arrow has them."""
    values = column.combine_chunks()
    if values.null_count:
        raise DataError(f"column {name!r} has {values.null_count} empty places: fill them first")
    if pa.types.is_boolean(values.type):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    leaf = values.type.value_type if pa.types.is_fixed_size_list(values.type) else values.type
    if pa.types.is_integer(leaf) or pa.types.is_floating(leaf):
        return column_to_numpy(name, values)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.binary())
    return values


@dataclass(frozen=True)
class BinarySource:
    """Examples that all have the same number of bytes, in files without frames.

        # CIFAR-10's binary version: a byte for the label, then the picture
        BinarySource.open("data_batch_*.bin", {"label": "uint8", "image": ("uint8", (3, 32, 32))})
    """

    files: tuple[str, ...]
    layout: np.dtype[np.void]

    @classmethod
    def open(cls, paths: Any, layout: Mapping[str, Any]) -> BinarySource:
        """The files that paths and globs name; the layout gives each part's type and shape."""
        parts = [(name, *part) if isinstance(part, tuple) else (name, part)
                 for name, part in layout.items()]  # fmt: skip
        return cls(tuple(expand(paths)), np.dtype(parts))

    @cached_property
    def _files(self) -> _Files[_BinaryFile]:
        size = self.layout.itemsize
        files = []
        for path in self.files:
            total = file_size(path)
            if total % size:
                raise DataError(f"{path} has {total} bytes, which examples of {size} bytes do not "
                                f"fill: {total % size} are left over")  # fmt: skip
            files.append(_BinaryFile(path, total // size))
        return _Files(tuple(files))

    def __len__(self) -> int:
        return len(self._files)

    @property
    def block(self) -> int:
        """As many examples as there are in a read that is worth its while."""
        return _block(self.layout.itemsize, is_remote(self.files[0]))

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        """Some of the examples of the ranges."""
        size = self.layout.itemsize
        data = b"".join(
            read_range(file.path, begin * size, end * size)
            for file, pieces in self._files.cut(ranges)
            for begin, end in pieces
        )
        rows = np.frombuffer(data, self.layout)[picks]
        assert self.layout.names is not None
        return {name: np.ascontiguousarray(rows[name]) for name in self.layout.names}


@dataclass(frozen=True)
class _BinaryFile:
    path: str
    count: int

    def __len__(self) -> int:
        return self.count
