"""Batch reads and writes: what Spark calls on the driver and in every task.

The reader does not implement `pushFilters`: Spark 4.3 keeps the filters that it pushed into a
DataFrame's reader, and later queries of the same DataFrame would read too few files. `load` prunes
partitions instead; see docs/decisions/spark-filters.md.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from phalanx.errors import DataError
from phalanx.records.spark.columns import RecordType
from phalanx.records.spark.dataset import Split, find_dataset, plan_splits, read_split
from phalanx.records.spark.options import Options, WriteLocality
from phalanx.records.spark.output import PendingFile, WriteJob, write_files


@cache
def freeze_loaded_objects() -> None:
    """Exclude the objects loaded so far from garbage collection.

    Spark's Python workers collect garbage after every task. With Arrow and pandas loaded, that
    takes longer than reading a small file.
    """
    gc.collect()
    gc.freeze()


@dataclass
class TFRecordPartition(InputPartition):
    """The splits that one task reads."""

    splits: tuple[Split, ...]


def read_partition(
    partition: InputPartition, columns: pa.Schema, record_type: RecordType
) -> Iterator[pa.RecordBatch]:
    """The batches of a task; Spark passes another class to a task without splits."""
    if isinstance(partition, TFRecordPartition):
        freeze_loaded_objects()
        for split in partition.splits:
            yield from read_split(split, columns, record_type)


class TFRecordReader(DataSourceReader):
    """Reads all files of a dataset."""

    def __init__(self, options: Options, columns: pa.Schema) -> None:
        self.options, self.columns = options, columns

    def partitions(self) -> Sequence[InputPartition]:
        files = find_dataset(self.options)
        planned = plan_splits(files, self.options.max_partition_bytes)
        return [TFRecordPartition(splits) for splits in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_partition(partition, self.columns, self.options.record_type)


@dataclass
class CommitMessage(WriterCommitMessage):
    """The files that a task reports to the driver."""

    files: tuple[PendingFile, ...]


class TFRecordWriter(DataSourceArrowWriter):
    """Writes a file in each task; the driver publishes them together."""

    def __init__(self, options: Options, job: WriteJob, overwrite: bool) -> None:
        self.options, self.job, self.overwrite = options, job, overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        freeze_loaded_objects()
        number, attempt = task_and_attempt()
        stem = f"part-{number:05d}-{self.job.id}"
        directory = f"{self.job.temporary}/{number}-{attempt}"
        batches = self._check_each(iterator)
        names = write_files(batches, directory, stem, self.options, always=number == 0)
        return CommitMessage(tuple(PendingFile(f"{directory}/{name}", name) for name in names))

    def _check_each(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stop when the job has ended, because another attempt was faster."""
        self.job.check_open()
        for batch in batches:
            self.job.check_open()
            yield batch

    def commit(self, messages: Sequence[CommitMessage | None]) -> None:
        files = [file for message in messages if message for file in message.files]
        self.job.commit(files, overwrite=self.overwrite)

    def abort(self, messages: Sequence[CommitMessage | None]) -> None:
        self.job.end()


class LocalWriter(DataSourceArrowWriter):
    """Writes a file in each task to the local disk of its executor.

    The driver cannot see these files: each is published as soon as it is complete, and a second
    attempt replaces the file of the first on the same executor.
    """

    def __init__(self, options: Options, job: WriteJob) -> None:
        self.options, self.job = options, job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        freeze_loaded_objects()
        number, _ = task_and_attempt()
        stem = f"part-{number:05d}-{self.job.id}"
        write_files(iterator, self.options.path, stem, self.options, always=False)
        return CommitMessage(())


def make_writer(options: Options, job_id: str, overwrite: bool) -> DataSourceArrowWriter:
    """The writer for these options; its temporary directory is created."""
    job = WriteJob(options.path, job_id)
    if options.write_locality is WriteLocality.LOCAL:
        if overwrite:
            raise DataError(
                "writeLocality is local, so that the files of other executors cannot be seen and "
                "overwritten: use the mode append, and a new directory for each write"
            )
        return LocalWriter(options, job)
    job.begin()
    return TFRecordWriter(options, job, overwrite)


def task_and_attempt() -> tuple[int, int]:
    """The number of the task that this process runs, and of its attempt."""
    context = TaskContext.get()
    assert context is not None, "called outside of a task"
    return context.partitionId(), context.taskAttemptId()
