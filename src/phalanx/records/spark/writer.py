"""Spark's side of writing: files on the executors, their publication on the driver."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from phalanx.errors import DataError
from phalanx.records.spark.commit import Job, Staged
from phalanx.records.spark.options import Options, WriteLocality
from phalanx.records.spark.task import write_files
from phalanx.records.spark.worker import settle


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver: which files it staged."""

    files: tuple[Staged, ...]


class TFRecordWriter(DataSourceArrowWriter):
    """Writes one file for each task, which are published together."""

    def __init__(self, options: Options, job: Job, overwrite: bool) -> None:
        self.options, self.job, self.overwrite = options, job, overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """What every task does."""
        settle()
        number, attempt = task_and_attempt()
        stem = f"part-{number:05d}-{self.job.id}"
        directory = f"{self.job.staging}/{number}-{attempt}"
        batches = self._while_open(iterator)
        names = write_files(batches, directory, stem, self.options, always=number == 0)
        return Written(tuple(Staged(f"{directory}/{name}", name) for name in names))

    def _while_open(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches, as long as the job goes on: another attempt may have been faster."""
        self.job.check_open()
        for batch in batches:
            self.job.check_open()
            yield batch

    def commit(self, messages: Sequence[Written | None]) -> None:
        """All tasks are done."""
        files = [file for message in messages if message for file in message.files]
        self.job.commit(files, overwrite=self.overwrite)

    def abort(self, messages: Sequence[Written | None]) -> None:
        """A task failed for good."""
        self.job.end()


class LocalWriter(DataSourceArrowWriter):
    """Writes one file for each task on the disk of the executor that runs it.

    The driver cannot see them: a file gets its name as soon as it is whole.
    """

    def __init__(self, options: Options, job: Job) -> None:
        self.options, self.job = options, job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """What every task does; a second attempt replaces what a first one wrote here."""
        settle()
        number, _ = task_and_attempt()
        stem = f"part-{number:05d}-{self.job.id}"
        write_files(iterator, self.options.path, stem, self.options, always=False)
        return Written(())


def make_writer(options: Options, job_id: str, overwrite: bool) -> DataSourceArrowWriter:
    """The writer for these options, with room made for its tasks."""
    job = Job(options.path, job_id)
    if options.write_locality is WriteLocality.LOCAL:
        if overwrite:
            raise DataError(
                "with writeLocality local the files of other executors cannot be seen, and so not "
                "be overwritten: use the mode append, and a directory of its own for each write"
            )
        return LocalWriter(options, job)
    job.begin()
    return TFRecordWriter(options, job, overwrite)


def task_and_attempt() -> tuple[int, int]:
    """The number of the task that this process runs, and of this attempt at it."""
    context = TaskContext.get()
    assert context is not None, "called outside of a task"
    return context.partitionId(), context.taskAttemptId()
