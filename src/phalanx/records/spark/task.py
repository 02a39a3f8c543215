"""What one task writes: a file, or one for each value of the partition columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import DataError
from phalanx.records.directory import remove
from phalanx.records.spark.columns import RecordType, check_byte_array, encode, features_of
from phalanx.records.spark.options import Options
from phalanx.records.spark.partitions import partition_path
from phalanx.records.writer import RecordWriter


def check_columns(columns: pa.Schema, options: Options) -> None:
    """Can such columns be written at all? Better asked before any task starts."""
    missing = [name for name in options.partition_by if name not in columns.names]
    if missing:
        raise DataError(f"there is no column {', '.join(missing)} to partition by: there are "
                        f"{', '.join(columns.names)}")  # fmt: skip
    stored = pa.schema([field for field in columns if field.name not in options.partition_by])
    if not stored.names:
        raise DataError("every column is a partition column: none is left to write")
    if options.record_type is RecordType.BYTE_ARRAY:
        check_byte_array(stored)
    else:
        features_of(stored, options.record_type)


def write_files(
    batches: Iterable[pa.RecordBatch], directory: str, stem: str, options: Options, *, always: bool
) -> list[str]:
    """Write a task's rows; the names of the files, within the directory, are returned.

    Rows should come sorted by the partition columns: a file ends where their values change. With
    `always` there is a file even if there are no rows. After an error there is none.
    """
    names: list[str] = []
    writer: RecordWriter | None = None
    place: str | None = None
    try:
        for here, rows in _by_partition(batches, options.partition_by):
            if writer is None or here != place:
                _close(writer)
                place, writer = here, _open(directory, here, stem, names, options)
            writer.write_framed(*encode(rows, options.record_type))
        if writer is None and always and not options.partition_by:
            writer = _open(directory, "", stem, names, options)
        _close(writer)
    except BaseException:
        if writer is not None:
            writer.discard()
        for name in names:
            remove(f"{directory}/{name}")
        raise
    return names


def _open(
    directory: str, place: str, stem: str, names: list[str], options: Options
) -> RecordWriter:
    name = f"{stem}-c{len(names):03d}{options.suffix}"
    names.append(f"{place}/{name}" if place else name)
    return RecordWriter(f"{directory}/{names[-1]}", compression=options.compression)


def _close(writer: RecordWriter | None) -> None:
    if writer is not None:
        writer.close()


def _by_partition(
    batches: Iterable[pa.RecordBatch], columns: tuple[str, ...]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batches, cut where a partition column changes; and the directories for each piece."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if not columns:
            yield "", batch
            continue
        stored = batch.drop_columns(list(columns))
        starts = _find_changes([batch.column(name) for name in columns])
        for start, stop in zip(starts, [*starts[1:], batch.num_rows], strict=True):
            values = {name: batch.column(name)[start].as_py() for name in columns}
            yield partition_path(values), stored.slice(start, stop - start)


def _find_changes(columns: list[pa.Array]) -> list[int]:
    """The rows whose values differ from those of the row before; the first is one."""
    changed = np.ones(len(columns[0]), bool)
    codes = [
        np.asarray(pc.dictionary_encode(column, null_encoding="encode").indices)
        for column in columns
    ]
    changed[1:] = np.logical_or.reduce([np.diff(code) != 0 for code in codes])
    return [int(row) for row in np.flatnonzero(changed)]
