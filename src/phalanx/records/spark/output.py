"""Writing a directory of files: tasks write them, and the driver publishes them together.

Tasks write below `_temporary`, which readers ignore. When all tasks have succeeded, the driver
moves the files that they reported to their final paths and writes `_SUCCESS`. The files of tasks
that failed, were killed, or ran twice are deleted.

Files are moved one by one but appear together. Meanwhile `_commit-ID` lists the new files, and
readers ignore the files listed. Then the list is deleted or, when files are replaced, atomically
becomes the list of the old files until they are deleted. If the driver dies at any moment, readers
see either all old files or all new ones, and `_SUCCESS` does not exist.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from phalanx.errors import DataError
from phalanx.records import storage
from phalanx.records.spark.columns import RecordType, check_byte_array, encode, features_of
from phalanx.records.spark.options import Options
from phalanx.records.spark.partitions import check_partition_columns, partition_path
from phalanx.records.storage.listing import COMMIT_PREFIX, find_files, list_all
from phalanx.records.writer import RecordWriter

TEMPORARY = "_temporary"
SUCCESS = "_SUCCESS"


class Overwrite(Enum):
    """Which files a write replaces."""

    NOTHING = auto()
    PARTITIONS = auto()
    """Those in the directories of the partitions that it writes."""
    EVERYTHING = auto()


@dataclass(frozen=True)
class PendingFile:
    """A complete file that waits to be published: its path, and its name in the directory."""

    path: str
    name: str


@dataclass(frozen=True)
class WriteJob:
    directory: str
    id: str

    @property
    def temporary(self) -> str:
        """The directory in which the tasks write."""
        return f"{self.directory}/{TEMPORARY}/{self.id}"

    def begin(self) -> None:
        """Create the temporary directory, so that a task that runs on after the end fails."""
        storage.make_directory(self.temporary)

    def check_open(self) -> None:
        """Fail if the job has ended; object stores have no directory to check."""
        if storage.has_directories(self.temporary) and not storage.exists(self.temporary):
            raise DataError(f"the write to {self.directory} has ended: this task came too late")

    def commit(self, files: Sequence[PendingFile], overwrite: Overwrite) -> None:
        """Publish the files, then delete those that they replace."""
        storage.remove(f"{self.directory}/{SUCCESS}")
        before = self._find_replaced(files, overwrite)
        publish_files(self.directory, self.id, files)
        if before:
            names = (path.removeprefix(f"{self.directory}/") for path in before)
            hide_files(self.directory, self.id, names)
            for path in before:
                storage.remove(path)
        unhide_files(self.directory, self.id)
        self.end()
        if overwrite is not Overwrite.NOTHING:
            storage.remove_empty_below(self.directory)
        storage.write_bytes(f"{self.directory}/{SUCCESS}")

    def _find_replaced(self, files: Sequence[PendingFile], overwrite: Overwrite) -> list[str]:
        if overwrite is Overwrite.NOTHING:
            return []
        before = [
            path for path in list_all(self.directory) if not path.startswith(f"{self.temporary}/")
        ]
        if overwrite is Overwrite.EVERYTHING:
            return before
        written = {f"{self.directory}/{file.name}".rpartition("/")[0] for file in files}
        return [path for path in before if path.rpartition("/")[0] in written]

    def abort(self) -> None:
        """Delete all that the job wrote, and the directory if nothing else is in it."""
        self.end()
        storage.remove_if_empty(self.directory)

    def end(self) -> None:
        """Delete the files that were not published."""
        storage.remove_shared_directory(self.temporary)
        storage.remove_if_empty(f"{self.directory}/{TEMPORARY}")


def holds_table(path: str) -> bool:
    """Whether a complete write, or any file that readers see, is at this path."""
    if not storage.exists(path):
        return False
    return storage.exists(f"{path}/{SUCCESS}") or bool(find_files([path]))


def publish_files(directory: str, job_id: str, files: Sequence[PendingFile]) -> None:
    """Move all files or none to their final paths, hidden until `unhide_files`."""
    hide_files(directory, job_id, (file.name for file in files))
    moved = []
    try:
        for file in files:
            target = f"{directory}/{file.name}"
            moved.append(target)
            storage.move_file(file.path, target)
    except BaseException:
        for target in moved:
            storage.remove(target)
        unhide_files(directory, job_id)
        raise


def hide_files(directory: str, job_id: str, names: Iterable[str]) -> None:
    """Hide these files from readers, instead of those that the job hid before."""
    storage.write_bytes(f"{directory}/{COMMIT_PREFIX}{job_id}", json.dumps(list(names)).encode())


def unhide_files(directory: str, job_id: str) -> None:
    storage.remove(f"{directory}/{COMMIT_PREFIX}{job_id}")


def check_columns(columns: pa.Schema, options: Options) -> None:
    """Check that columns of these types can be written, before any task starts."""
    if not columns.names:
        raise DataError("the DataFrame has no columns: there is nothing to write")
    check_partition_columns(options.partition_by, columns.names)
    stored = pa.schema([field for field in columns if field.name not in options.partition_by])
    if not stored.names:
        raise DataError("every column is a partition column: none is left to write")
    if options.record_type is RecordType.BYTE_ARRAY:
        check_byte_array(stored)
    else:
        features_of(stored, options.record_type)


def write_files(
    batches: Iterable[pa.RecordBatch],
    directory: str,
    stem: str,
    options: Options,
    *,
    always: bool,
    root: str | None = None,
) -> list[str]:
    """Write the rows of a task and return the names of the files within the directory.

    Rows should be sorted by the partition columns: a file ends where their values change. With
    `always`, a file is written even if there are no rows. An error deletes all of them. Only
    directories below `root` are created: a task that outlives its job must not create those again
    that the driver has deleted.
    """

    def open_file(partition: str) -> RecordWriter:
        folder = f"{directory}/{partition}" if partition else directory
        name = f"{stem}-c{len(names):03d}{options.suffix}"
        names.append(f"{partition}/{name}" if partition else name)
        if root is not None:
            storage.make_directories_below(root, folder)
        return RecordWriter(
            f"{folder}/{name}", compression=options.compression, make_directory=root is None
        )

    names: list[str] = []
    writer: RecordWriter | None = None
    current: str | None = None
    try:
        for partition, rows in _split_by_partition(batches, options.partition_by):
            if writer is None or partition != current:
                if writer is not None:
                    writer.close()
                current, writer = partition, open_file(partition)
            writer.write_framed(*encode(rows, options.record_type))
        if writer is None and always and not options.partition_by:
            writer = open_file("")
        if writer is not None:
            writer.close()
    except BaseException:
        if writer is not None:
            writer.discard()
        for name in names:
            storage.remove(f"{directory}/{name}")
        raise
    return names


def _split_by_partition(
    batches: Iterable[pa.RecordBatch], columns: tuple[str, ...]
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Split batches where a partition column changes; yields each with its partition path."""
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
    """The first row, and the rows whose values differ from those of the row before."""
    changed = np.zeros(len(columns[0]), bool)
    changed[0] = True
    for column in columns:
        codes = pc.dictionary_encode(column, null_encoding="encode").indices
        changed[1:] |= np.diff(np.asarray(codes)) != 0
    return [int(row) for row in np.flatnonzero(changed)]
