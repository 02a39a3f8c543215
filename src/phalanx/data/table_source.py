"""Examples in Arrow tables, Parquet and CSV files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from phalanx.data.order import Indices
from phalanx.data.sources import Column, Columns, FileSet, Ranges, block_for
from phalanx.errors import DataError
from phalanx.records import expand
from phalanx.records.example import column_to_numpy
from phalanx.records.storage import is_remote, open_input


@dataclass(frozen=True)
class TableSource:
    """Examples in an Arrow table; a Parquet file that is memory-mapped, or CSV, becomes one."""

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def block(self) -> int:
        """As many rows as there are in a read that is worth its while."""
        return block_for(self.table.nbytes / max(len(self), 1))

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
        """As many rows as there are in a read that is worth its while."""
        size = sum(group.size for group in self._groups.files)
        return block_for(size / max(len(self), 1), is_remote(self.files[0]))

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
        try:
            return pq.ParquetFile(file).read_row_group(group.number)
        except (pa.ArrowInvalid, OSError) as error:
            raise _not_parquet(group.path, error) from None


def _not_parquet(path: str, error: Exception) -> DataError:
    return DataError(f"{path} is not a Parquet file that can be read: {error}")


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
    return TableSource(_join(tables))


def _join(tables: list[pa.Table]) -> pa.Table:
    try:
        return pa.concat_tables(tables)
    except pa.ArrowInvalid as error:
        raise DataError(f"the files do not have the same columns and types: {error}") from None


def _rows(tables: list[pa.Table], picks: Indices) -> Columns:
    rows = _join(tables).combine_chunks().take(pa.array(picks))
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
