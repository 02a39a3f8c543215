"""Spark's side of reading: partitions on the driver, batches on the executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from phalanx.records.spark.columns import RecordType
from phalanx.records.spark.dataset import Files, find_dataset, read_split
from phalanx.records.spark.options import Options
from phalanx.records.spark.partitions import Values, partition_value
from phalanx.records.spark.splits import Split, plan_splits


@dataclass
class Task(InputPartition):
    """What one task reads."""

    splits: tuple[Split, ...]


def read_task(task: Task, columns: pa.Schema, record_type: RecordType) -> Iterator[pa.RecordBatch]:
    """The batches of a task."""
    for split in task.splits:
        yield from read_split(split, columns, record_type)


class TFRecordReader(DataSourceReader):
    """Reads all files, or those in directories that a query's filters leave."""

    def __init__(self, options: Options, columns: pa.Schema) -> None:
        self.options, self.columns = options, columns
        self._filters: list[Filter] = []
        # An attribute that says of itself what Spark looks for: see `_OptionalPushdown`.
        self.pushFilters = _OptionalPushdown(self._filters)

    def partitions(self) -> Sequence[InputPartition]:
        """Which task reads what."""
        files = prune(find_dataset(self.options), self._filters, self.columns)
        return [Task(splits) for splits in plan_splits(files, self.options.max_partition_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What Spark calls for each task; one without files comes as another class."""
        if isinstance(partition, Task):
            yield from read_task(partition, self.columns, self.options.record_type)


class _OptionalPushdown:
    """`pushFilters` that Spark may call, but need not.

    Spark refuses every query of a reader that defines it unless
    `spark.sql.python.filterPushdown.enabled` is set; it looks at `__func__` to see that.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, kept: list[Filter]) -> None:
        self._kept = kept

    def __call__(self, filters: list[Filter]) -> list[Filter]:
        # Spark applies all of them again: that is cheap, and never wrong.
        self._kept += filters
        return filters


_COMPARE: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda found, wanted: found == wanted,
    EqualNullSafe: lambda found, wanted: found == wanted,
    GreaterThan: lambda found, wanted: found > wanted,
    GreaterThanOrEqual: lambda found, wanted: found >= wanted,
    LessThan: lambda found, wanted: found < wanted,
    LessThanOrEqual: lambda found, wanted: found <= wanted,
    In: lambda found, wanted: found in wanted,
}


def prune(files: Files, filters: Sequence[Filter], columns: pa.Schema) -> Files:
    """The files whose directories' values may pass all filters."""
    return [
        (file, values)
        for file, values in files
        if all(_may_pass(each, values, columns) for each in filters)
    ]


def _may_pass(condition: Filter, values: Values, columns: pa.Schema) -> bool:
    negated = isinstance(condition, Not)
    inner = condition.child if negated else condition
    name = ".".join(inner.attribute)
    if name not in values or name not in columns.names:
        return True
    found = partition_value(name, values[name], columns.field(name).type).as_py()
    if isinstance(inner, (IsNull, IsNotNull)):
        passes = (found is None) == isinstance(inner, IsNull)
    elif type(inner) in _COMPARE and found is not None:
        try:
            passes = _COMPARE[type(inner)](found, inner.value)
        except TypeError:
            return True
    else:
        return True
    return passes != negated
