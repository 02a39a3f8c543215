"""Spark's side of reading: partitions on the driver, batches on the executors.

There is no `pushFilters`: Spark 4.3 keeps what it pushed into a DataFrame's reader, and the next
query of the same DataFrame, with other filters or none, reads as few files. `load` prunes instead;
see docs/decisions/spark-filters.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from phalanx.records.spark.columns import RecordType
from phalanx.records.spark.dataset import find_dataset, read_split
from phalanx.records.spark.options import Options
from phalanx.records.spark.splits import Split, plan_splits
from phalanx.records.spark.worker import settle


@dataclass
class Task(InputPartition):
    """What one task reads."""

    splits: tuple[Split, ...]


def read_task(task: Task, columns: pa.Schema, record_type: RecordType) -> Iterator[pa.RecordBatch]:
    """The batches of a task."""
    settle()
    for split in task.splits:
        yield from read_split(split, columns, record_type)


class TFRecordReader(DataSourceReader):
    """Reads all files."""

    def __init__(self, options: Options, columns: pa.Schema) -> None:
        self.options, self.columns = options, columns

    def partitions(self) -> Sequence[InputPartition]:
        """Which task reads what."""
        files = find_dataset(self.options)
        return [Task(splits) for splits in plan_splits(files, self.options.max_partition_bytes)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What Spark calls for each task; one without files comes as another class."""
        if isinstance(partition, Task):
            yield from read_task(partition, self.columns, self.options.record_type)
