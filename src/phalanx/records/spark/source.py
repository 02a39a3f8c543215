"""The Spark data source: `spark.read.format("tfrecord")` and `df.write.format("tfrecord")`.

These are the classes that Spark calls, on the driver and in every task, for batches and for
structured streaming, which reads new files as they appear and writes files in micro-batches.

The reader does not implement `pushFilters`: Spark 4.3 keeps the filters that it pushed into a
DataFrame's reader, and later queries of the same DataFrame would read too few files. `load` prunes
partitions instead; see docs/decisions/spark-filters.md.
"""

import gc
import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming import datasource as streaming
from pyspark.sql.types import StructType

from phalanx.errors import DataError
from phalanx.records import storage
from phalanx.records.spark import dataset, output
from phalanx.records.spark.dataset import StreamOffset, find_dataset
from phalanx.records.spark.options import Options, PartitionOverwriteMode, WriteLocality
from phalanx.records.spark.output import (
    SUCCESS,
    TEMPORARY,
    Overwrite,
    PendingFile,
    WriteJob,
    write_files,
)
from phalanx.records.storage.listing import list_all


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
    splits: tuple[dataset.Split, ...]


class _Reader:
    def __init__(self, options: Options, columns: pa.Schema) -> None:
        self.options, self.columns = options, columns

    def _plan(self, files: dataset.Files) -> Sequence[InputPartition]:
        planned = dataset.plan_splits(files, self.options.max_partition_bytes)
        return [TFRecordPartition(splits) for splits in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batches of a task; Spark passes another class to a task without splits."""
        if isinstance(partition, TFRecordPartition):
            freeze_loaded_objects()
            for split in partition.splits:
                yield from dataset.read_split(split, self.columns, self.options.record_type)


class TFRecordReader(_Reader, datasource.DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return self._plan(find_dataset(self.options))


@dataclass
class CommitMessage(datasource.WriterCommitMessage):
    files: tuple[PendingFile, ...]


class TFRecordWriter(datasource.DataSourceArrowWriter):
    """Writes a file in each task; the driver publishes them together."""

    def __init__(self, options: Options, job: WriteJob, overwrite: Overwrite) -> None:
        self.options, self.job, self.overwrite = options, job, overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        freeze_loaded_objects()
        context = _task_context()
        number = context.partitionId()
        stem = f"part-{number:05d}-{self.job.id}"
        directory = f"{self.job.temporary}/{number}-{context.taskAttemptId()}"
        batches = self._check_each(iterator)
        names = write_files(
            batches,
            directory,
            stem,
            self.options,
            always=number == 0,
            root=self.job.temporary,
        )
        return CommitMessage(tuple(PendingFile(f"{directory}/{name}", name) for name in names))

    def _check_each(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stop when the job has ended, because another attempt was faster."""
        self.job.check_open()
        for batch in batches:
            self.job.check_open()
            yield batch

    def commit(self, messages: Sequence[CommitMessage | None]) -> None:
        files = [file for message in messages if message for file in message.files]
        self.job.commit(files, self.overwrite)

    def abort(self, messages: Sequence[CommitMessage | None]) -> None:
        self.job.abort()


class LocalWriter(datasource.DataSourceArrowWriter):
    """Writes a file in each task to the local disk of its executor.

    The driver cannot see these files: each is published as soon as it is complete, and a second
    attempt replaces the file of the first on the same executor.
    """

    def __init__(self, options: Options, job: WriteJob) -> None:
        self.options, self.job = options, job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        freeze_loaded_objects()
        stem = f"part-{_task_context().partitionId():05d}-{self.job.id}"
        write_files(iterator, self.options.path, stem, self.options, always=False)
        return CommitMessage(())


def _task_context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "called outside of a task"
    return context


class TFRecordStreamReader(
    _Reader, datasource.DataSourceStreamReader, streaming.SupportsTriggerAvailableNow
):
    """Reads each file once, as it appears."""

    _available: frozenset[str] | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Restrict the stream to the files that exist now, however many batches they take."""
        self._available = frozenset(file.path for file, _ in find_dataset(self.options))

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        return StreamOffset().dump()

    def getDefaultReadLimit(self) -> streaming.ReadLimit:  # noqa: N802
        most = self.options.max_files_per_trigger
        return streaming.ReadAllAvailable() if most is None else streaming.ReadMaxFiles(most)

    def latestOffset(self, start: dict[str, str], limit: streaming.ReadLimit) -> dict[str, str]:  # noqa: N802
        """The offset after the next batch; the oldest files are read first."""
        offset = StreamOffset.load(start)
        found = [file for file, _ in find_dataset(self.options)]
        readable = (f for f in found if self._available is None or f.path in self._available)
        new = dataset.sort_by_age(file for file in readable if not offset.covers(file))
        if isinstance(limit, streaming.ReadMaxFiles):
            new = new[: limit.max_files]
        return offset.add(new, found, self.options.max_file_age).dump() if new else start

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        files = dict(find_dataset(self.options))
        batch = dataset.select_files_between(
            StreamOffset.load(start), StreamOffset.load(end), files
        )
        return self._plan([(file, files[file]) for file in batch])


@dataclass
class StreamCommitMessage(CommitMessage):
    query: str


class TFRecordStreamWriter(datasource.DataSourceStreamArrowWriter):
    """Publishes the files of each batch together and once, even if the batch runs again."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamCommitMessage:
        freeze_loaded_objects()
        context = _task_context()
        number = context.partitionId()
        properties = ("sql.streaming.queryId", "streaming.sql.batchId")
        query, batch = map(context.getLocalProperty, properties)
        assert query is not None and batch is not None, "called outside of a stream"
        directory = (
            f"{_temporary(self.options.path, query)}/{batch}/{number}-{context.taskAttemptId()}"
        )
        stem = f"part-{number:05d}-{query}-{batch}"
        names = write_files(iterator, directory, stem, self.options, always=False)
        files = tuple(PendingFile(f"{directory}/{name}", name) for name in names)
        return StreamCommitMessage(files, query)

    def commit(self, messages: Sequence[CommitMessage | None], batchId: int) -> None:  # noqa: N803
        written = [message for message in messages if isinstance(message, StreamCommitMessage)]
        if not written:
            return
        query, files = written[0].query, [file for each in written for file in each.files]
        publish_batch(self.options.path, query, batchId, files)

    def abort(self, messages: Sequence[CommitMessage | None], batchId: int) -> None:  # noqa: N803
        for message in messages:
            if isinstance(message, StreamCommitMessage):
                storage.remove(f"{_temporary(self.options.path, message.query)}/{batchId}")


def publish_batch(directory: str, query: str, batch: int, files: Sequence[PendingFile]) -> None:
    """Publish the files of a batch, unless an earlier attempt did.

    `_stream-QUERY` holds the number of the last published batch. The remains of a failed attempt
    are deleted first.
    """
    state, job_id = f"{directory}/_stream-{query}", f"{query}-{batch}"
    last = json.loads(storage.read_bytes(state))["batch"] if storage.exists(state) else -1
    if int(last) < batch:
        for path in list_all(directory):
            if f"-{job_id}-c" in path and f"/{TEMPORARY}/" not in path:
                storage.remove(path)
        output.publish_files(directory, job_id, files)
        storage.write_bytes(state, json.dumps({"batch": batch}).encode())
    output.unhide_files(directory, job_id)
    storage.write_bytes(f"{directory}/{SUCCESS}")
    storage.remove(_temporary(directory, query))
    storage.remove_if_empty(f"{directory}/{TEMPORARY}")


def _temporary(directory: str, query: str) -> str:
    return f"{directory}/{TEMPORARY}/{query}"


class TFRecordSource(datasource.DataSource):
    @classmethod
    def name(cls) -> str:
        return "tfrecord"

    def schema(self) -> StructType:
        options = Options.parse(self.options)
        return from_arrow_schema(dataset.infer_dataset(options, find_dataset(options)))

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        freeze_loaded_objects()
        return TFRecordReader(Options.parse(self.options), _to_arrow(schema))

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceArrowWriter:
        freeze_loaded_objects()
        options = Options.parse(self.options)
        output.check_columns(_to_arrow(schema), options)
        job = WriteJob(options.path, str(uuid.uuid4()))
        if options.write_locality is not WriteLocality.LOCAL:
            job.begin()
            return TFRecordWriter(options, job, _replaced(overwrite, options))
        if overwrite:
            raise DataError(
                "writeLocality is local, so that the files of other executors cannot be seen and "
                "overwritten: use the mode append, and a new directory for each write"
            )
        return LocalWriter(options, job)

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:  # noqa: N802
        return TFRecordStreamReader(Options.parse(self.options), _to_arrow(schema))

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> datasource.DataSourceStreamArrowWriter:
        options = Options.parse(self.options)
        output.check_columns(_to_arrow(schema), options)
        return TFRecordStreamWriter(options)


class TFRecordsSource(TFRecordSource):
    """The same data source under its old name."""

    @classmethod
    def name(cls) -> str:
        return "tfrecords"


def _replaced(overwrite: bool, options: Options) -> Overwrite:
    if not overwrite:
        return Overwrite.NOTHING
    is_dynamic = options.partition_overwrite_mode is PartitionOverwriteMode.DYNAMIC
    return Overwrite.PARTITIONS if is_dynamic and options.partition_by else Overwrite.EVERYTHING


def _to_arrow(schema: StructType) -> pa.Schema:
    """The Arrow types that Spark itself uses; it compares them exactly."""
    return to_arrow_schema(schema, timezone="UTC")
