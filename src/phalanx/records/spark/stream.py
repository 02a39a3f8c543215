"""Spark's side of streams: new files as they come, and a batch of files at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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

from phalanx.records.directory import (
    FoundFile,
    list_all,
    read_mark,
    remove,
    remove_if_empty,
    write_mark,
)
from phalanx.records.spark.commit import SUCCESS, TEMPORARY, Staged, publish, show
from phalanx.records.spark.dataset import find_dataset
from phalanx.records.spark.options import Options
from phalanx.records.spark.reader import Task, read_task
from phalanx.records.spark.seen import Seen, between
from phalanx.records.spark.splits import plan_splits
from phalanx.records.spark.task import write_files
from phalanx.records.spark.worker import settle
from phalanx.records.spark.writer import Written, task_and_attempt
from phalanx.records.storage import exists


class TFRecordStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads files as they appear; each once."""

    def __init__(self, options: Options, columns: pa.Schema) -> None:
        self.options, self.columns = options, columns
        self._available: frozenset[str] | None = None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read, in as many batches as it takes, the files that are there now and no others."""
        self._available = frozenset(file.path for file, _ in find_dataset(self.options))

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        """Nothing was read."""
        return Seen().dump()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How many files at most make a batch."""
        most = self.options.max_files_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:  # noqa: N802
        """What will have been read after the next batch: the oldest files come first."""
        seen = Seen.load(start)
        found = [file for file, _ in find_dataset(self.options)]
        new = sorted(
            (file for file in found if not seen.has(file) and self._may_read(file)),
            key=lambda file: (file.modified, file.path),
        )
        if isinstance(limit, ReadMaxFiles):
            new = new[: limit.max_files]
        return seen.add(new, found, self.options.max_file_age).dump() if new else start

    def _may_read(self, file: FoundFile) -> bool:
        return self._available is None or file.path in self._available

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        """Which task reads what of a batch."""
        files = dict(find_dataset(self.options))
        batch = between(Seen.load(start), Seen.load(end), files)
        splits = plan_splits([(file, files[file]) for file in batch],
                             self.options.max_partition_bytes)  # fmt: skip
        return [Task(each) for each in splits]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What every task does."""
        if isinstance(partition, Task):
            yield from read_task(partition, self.columns, self.options.record_type)


@dataclass
class WrittenBatch(Written):
    """What a task of a stream tells the driver: it also says whose batch it was."""

    query: str


class TFRecordStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the files of each batch together, once, also if the batch is run again."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenBatch:
        """What every task does."""
        settle()
        number, attempt = task_and_attempt()
        query, batch = _query_and_batch()
        directory = f"{_staging(self.options.path, query)}/{batch}/{number}-{attempt}"
        stem = f"part-{number:05d}-{query}-{batch}"
        names = write_files(iterator, directory, stem, self.options, always=False)
        return WrittenBatch(tuple(Staged(f"{directory}/{name}", name) for name in names), query)

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        """All tasks of a batch are done."""
        written = [message for message in messages if isinstance(message, WrittenBatch)]
        if not written:
            return
        query, files = written[0].query, [file for each in written for file in each.files]
        publish_batch(self.options.path, query, batchId, files)

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803
        """A task of a batch failed for good."""
        for message in messages:
            if isinstance(message, WrittenBatch):
                remove(f"{_staging(self.options.path, message.query)}/{batchId}")


def publish_batch(directory: str, query: str, batch: int, files: Sequence[Staged]) -> None:
    """Move a batch's files to their places, unless that was done before.

    `_stream-QUERY` holds the last batch that is whole. What a try before this one left half done
    is removed first.
    """
    mark, job = f"{directory}/_stream-{query}", f"{query}-{batch}"
    if _last_batch(mark) < batch:
        for path in list_all(directory):
            if f"-{job}-c" in path and f"/{TEMPORARY}/" not in path:
                remove(path)
        publish(directory, job, files)
        write_mark(mark, json.dumps({"batch": batch}).encode())
    show(directory, job)
    write_mark(f"{directory}/{SUCCESS}")
    remove(_staging(directory, query))
    remove_if_empty(f"{directory}/{TEMPORARY}")


def _last_batch(mark: str) -> int:
    return int(json.loads(read_mark(mark))["batch"]) if exists(mark) else -1


def _staging(directory: str, query: str) -> str:
    return f"{directory}/{TEMPORARY}/{query}"


def _query_and_batch() -> tuple[str, int]:
    """Which query this task belongs to, and which of its batches: Spark tells every task."""
    context = TaskContext.get()
    assert context is not None, "called outside of a task"
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    assert query is not None and batch is not None, "called outside of a stream"
    return query, int(batch)
