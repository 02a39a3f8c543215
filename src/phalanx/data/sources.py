"""Sources of examples: everything that has a length and can read ranges of its records."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, groupby
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.csv

from phalanx.data.types import Array, Column, Columns, Indices, Ranges
from phalanx.errors import DataError
from phalanx.records import expand
from phalanx.records.arrow import column_to_numpy, is_number
from phalanx.records.convert import open_parquet
from phalanx.records.storage import file_size, is_remote, open_input, read_range
from phalanx.records.types import Paths

_LOCAL_BLOCK = 1 << 14
_REMOTE_BLOCK = 1 << 17


class Source(Protocol):
    """Examples that can be read in any order; implement it to read other formats."""

    def __len__(self) -> int: ...

    @property
    def block(self) -> int:
        """The number of neighbours to read at a time; the shuffled order depends on it."""

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        """Read some examples.

        Args:
            ranges: The ranges of records to read, each (begin, end).
            picks: The examples to return, in order, as indices into the concatenated ranges.

        Returns:
            A column for each feature.
        """


FileT = TypeVar("FileT")


@dataclass(frozen=True)
class FileSet(Generic[FileT]):
    """Files whose records are numbered consecutively, and how many records each holds."""

    files: Sequence[FileT]
    counts: Sequence[int]

    @cached_property
    def _begins(self) -> list[int]:
        return [0, *accumulate(self.counts)]

    def __len__(self) -> int:
        return self._begins[-1]

    def locate(self, ranges: Ranges) -> Iterator[tuple[FileT, list[tuple[int, int]]]]:
        """The ranges within each file; consecutive ranges of one file come together."""
        parts = (part for begin, end in ranges for part in self._locate(begin, end))
        for number, group in groupby(parts, key=lambda part: part[0]):
            yield self.files[number], [(begin, end) for _, begin, end in group]

    def _locate(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        number = bisect_right(self._begins, begin) - 1
        while begin < end:
            base, stop = self._begins[number], min(end, self._begins[number + 1])
            if begin < stop:
                yield number, begin - base, stop - base
            begin = max(begin, stop)
            number += 1


def block_for(example_bytes: float, remote: bool = False) -> int:
    """The number of neighbours to read at a time: more if each read has a high latency."""
    return max(1, round((_REMOTE_BLOCK if remote else _LOCAL_BLOCK) / max(example_bytes, 1)))


@dataclass(frozen=True)
class ArraySource(Source):
    """Examples in memory: NumPy arrays of equal length."""

    arrays: Mapping[str, Array]

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.arrays.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"the arrays must have the same number of rows, and have {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    @property
    def block(self) -> int:
        return 1

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        rows = np.concatenate([np.arange(*each) for each in ranges])[picks]
        return {name: values[rows] for name, values in self.arrays.items()}


@dataclass(frozen=True)
class BinarySource(Source):
    """Examples of a fixed number of bytes, in files without frames.

    # The binary version of CIFAR-10: a byte for the label, then the image.
    BinarySource.open("data_batch_*.bin", {"label": "uint8", "image": ("uint8", (3, 32, 32))})
    """

    files: tuple[str, ...]
    layout: np.dtype[np.void]

    @classmethod
    def open(cls, paths: Paths, layout: Mapping[str, Any]) -> Self:
        """Open files.

        Args:
            paths: The files, as for `records.expand`.
            layout: The dtype of each feature, or its dtype and shape, in the order of the bytes.

        Returns:
            The source.
        """
        fields = [(name, *field) if isinstance(field, tuple) else (name, field)
                  for name, field in layout.items()]  # fmt: skip
        return cls(tuple(expand(paths)), np.dtype(fields))

    @cached_property
    def _files(self) -> FileSet[str]:
        size, counts = self.layout.itemsize, []
        for path in self.files:
            total = file_size(path)
            if total % size:
                raise DataError(f"{path} has {total} bytes, which is not a multiple of the {size} "
                                "bytes of an example")  # fmt: skip
            counts.append(total // size)
        return FileSet(self.files, counts)

    def __len__(self) -> int:
        return len(self._files)

    @property
    def block(self) -> int:
        return block_for(self.layout.itemsize, is_remote(self.files[0]))

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        size = self.layout.itemsize
        data = b"".join(
            read_range(path, begin * size, end * size)
            for path, parts in self._files.locate(ranges)
            for begin, end in parts
        )
        rows = np.frombuffer(data, self.layout)[picks]
        assert self.layout.names is not None
        return {name: np.ascontiguousarray(rows[name]) for name in self.layout.names}


@dataclass(frozen=True)
class TableSource(Source):
    """Examples in an Arrow table."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def block(self) -> int:
        return block_for(self.table.nbytes / max(len(self), 1))

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        return _take_rows([self.table.slice(begin, end - begin) for begin, end in ranges], picks)


@dataclass(frozen=True)
class _RowGroup:
    path: str
    number: int
    rows: int
    size: int


@dataclass(frozen=True)
class ParquetSource(Source):
    """Examples in Parquet files, of which the last few row groups are cached.

    For a shuffled order, write row groups of a few thousand rows: each is read as a whole.
    """

    files: tuple[str, ...]

    @classmethod
    def open(cls, paths: Paths) -> Self:
        """Open the files that `records.expand` finds."""
        return cls(tuple(expand(paths)))

    @cached_property
    def _groups(self) -> FileSet[_RowGroup]:
        groups = []
        for path in self.files:
            with open_parquet(path) as file:
                metadata = file.metadata
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                groups.append(_RowGroup(path, number, group.num_rows, group.total_byte_size))
        return FileSet(groups, [group.rows for group in groups])

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def block(self) -> int:
        size = sum(group.size for group in self._groups.files)
        return block_for(size / max(len(self), 1), is_remote(self.files[0]))

    def read(self, ranges: Ranges, picks: Indices) -> Columns:
        tables = [
            _read_row_group(group).slice(begin, end - begin)
            for group, parts in self._groups.locate(ranges)
            for begin, end in parts
        ]
        return _take_rows(tables, picks)


@lru_cache(maxsize=16)
def _read_row_group(group: _RowGroup) -> pa.Table:
    with open_parquet(group.path) as file:
        return file.read_row_group(group.number)


def read_csv(paths: Paths) -> TableSource:
    """Read CSV files with a header into memory."""
    tables = []
    for path in expand(paths):
        try:
            with open_input(path) as file:
                tables.append(pa.csv.read_csv(file))
        except pa.ArrowInvalid as error:
            raise DataError(f"{path} is not a CSV file with a header: {error}") from None
    return TableSource(_concat(tables))


def _concat(tables: list[pa.Table]) -> pa.Table:
    try:
        return pa.concat_tables(tables)
    except pa.ArrowInvalid as error:
        raise DataError(f"the files do not have the same columns and types: {error}") from None


def _take_rows(tables: list[pa.Table], picks: Indices) -> Columns:
    rows = _concat(tables).combine_chunks().take(pa.array(picks))
    return {name: _to_column(name, rows.column(name)) for name in rows.column_names}


def _to_column(name: str, column: pa.ChunkedArray) -> Column:
    """Numbers as NumPy arrays, text and lists as Arrow arrays."""
    values = column.combine_chunks()
    if values.null_count:
        raise DataError(f"column {name!r} has {values.null_count} nulls: fill them first")
    if pa.types.is_boolean(values.type):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    leaf = values.type.value_type if pa.types.is_fixed_size_list(values.type) else values.type
    if is_number(leaf):
        return column_to_numpy(name, values)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.binary())
    return values
