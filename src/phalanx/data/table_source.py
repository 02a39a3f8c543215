"""Sources for Arrow tables, Parquet and CSV files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import pyarrow as pa

from phalanx.data.sources import FileSet, Source, block_for
from phalanx.data.types import Column, Columns, Indices, Ranges
from phalanx.errors import DataError
from phalanx.records import expand
from phalanx.records.arrow import is_number
from phalanx.records.example import column_to_numpy
from phalanx.records.storage import is_remote, open_input
from phalanx.records.types import Paths


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
class ParquetSource(Source):
    """Examples in Parquet files, of which the last few row groups are cached.

    For a shuffled order, write row groups of a few thousand rows: each is read as a whole.
    """

    files: tuple[str, ...]

    @classmethod
    def open(cls, paths: Paths) -> ParquetSource:
        """Open the files that `records.expand` finds."""
        return cls(tuple(expand(paths)))

    @cached_property
    def _groups(self) -> FileSet[_RowGroup]:
        import pyarrow.parquet as pq  # noqa: PLC0415

        groups = []
        for path in self.files:
            try:
                with open_input(path) as file:
                    metadata = pq.ParquetFile(file).metadata
            except (pa.ArrowInvalid, OSError) as error:
                raise _not_parquet(path, error) from None
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                groups.append(_RowGroup(path, number, group.num_rows, group.total_byte_size))
        return FileSet(tuple(groups))

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
        try:
            return pq.ParquetFile(file).read_row_group(group.number)
        except (pa.ArrowInvalid, OSError) as error:
            raise _not_parquet(group.path, error) from None


def _not_parquet(path: str, error: Exception) -> DataError:
    return DataError(f"{path} is not a Parquet file that can be read: {error}")


def read_csv(paths: Paths) -> TableSource:
    """Read CSV files with a header into memory."""
    from pyarrow import csv  # noqa: PLC0415

    tables = []
    for path in expand(paths):
        try:
            with open_input(path) as file:
                tables.append(csv.read_csv(file))
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
