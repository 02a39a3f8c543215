"""Structured streaming: reading new files as they appear, and writing files in micro-batches."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from phalanx.records import storage
from phalanx.records.spark import output
from phalanx.records.spark.batch import (
    CommitMessage,
    TFRecordPartition,
    freeze_loaded_objects,
    read_partition,
    task_and_attempt,
)
from phalanx.records.spark.dataset import find_dataset, plan_splits
from phalanx.records.spark.options import Options
from phalanx.records.spark.output import SUCCESS, TEMPORARY, PendingFile
from phalanx.records.spark.stream_offset import StreamOffset, select_files_between
from phalanx.records.storage.listing import FoundFile, list_all


class TFRecordStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads each file once, as it appears."""

    def __init__(self, options: Options, columns: pa.Schema) -> None:
        self.options, self.columns = options, columns
        self._available: frozenset[str] | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Restrict the stream to the files that exist now, however many batches they take."""
        self._available = frozenset(file.path for file, _ in find_dataset(self.options))

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        return StreamOffset().dump()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.options.max_files_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802
        """The offset after the next batch; the oldest files are read first."""
        offset = StreamOffset.load(start)
        found = [file for file, _ in find_dataset(self.options)]
        new = sorted(
            (file for file in found if not offset.covers(file) and self._may_read(file)),
            key=lambda file: (file.modified, file.path),
        )
        if isinstance(limit, ReadMaxFiles):
            new = new[: limit.max_files]
        return offset.add(new, found, self.options.max_file_age).dump() if new else start

    def _may_read(self, file: FoundFile) -> bool:
        return self._available is None or file.path in self._available

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        files = dict(find_dataset(self.options))
        batch = select_files_between(StreamOffset.load(start), StreamOffset.load(end), files)
        planned = plan_splits([(file, files[file]) for file in batch],
                              self.options.max_partition_bytes)  # fmt: skip
        return [TFRecordPartition(splits) for splits in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from read_partition(partition, self.columns, self.options.record_type)


@dataclass
class StreamCommitMessage(CommitMessage):
    """The files that a task of a stream reports to the driver, and its query."""

    query: str


class TFRecordStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the files of each batch together and once, even if the batch runs again."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamCommitMessage:
        freeze_loaded_objects()
        number, attempt = task_and_attempt()
        query, batch = _query_and_batch()
        directory = f"{_temporary(self.options.path, query)}/{batch}/{number}-{attempt}"
        stem = f"part-{number:05d}-{query}-{batch}"
        names = output.write_files(iterator, directory, stem, self.options, always=False)
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
    if _last_batch(state) < batch:
        for path in list_all(directory):
            if f"-{job_id}-c" in path and f"/{TEMPORARY}/" not in path:
                storage.remove(path)
        output.publish_files(directory, job_id, files)
        storage.write_bytes(state, json.dumps({"batch": batch}).encode())
    output.unhide_files(directory, job_id)
    storage.write_bytes(f"{directory}/{SUCCESS}")
    storage.remove(_temporary(directory, query))
    storage.remove_if_empty(f"{directory}/{TEMPORARY}")


def _last_batch(path: str) -> int:
    return int(json.loads(storage.read_bytes(path))["batch"]) if storage.exists(path) else -1


def _temporary(directory: str, query: str) -> str:
    return f"{directory}/{TEMPORARY}/{query}"


def _query_and_batch() -> tuple[str, int]:
    """The query that this task belongs to, and the number of the batch."""
    context = TaskContext.get()
    assert context is not None, "called outside of a task"
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    assert query is not None and batch is not None, "called outside of a stream"
    return query, int(batch)
