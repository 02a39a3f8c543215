"""Large tables in checkpoints: slices of one tensor, written and read by the tasks that hold them.

TensorFlow saves the model, with the first row of each large table. The other rows are saved beside
it, in slices, and merged into one checkpoint, from which TensorFlow alone restores whole tables.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import tensorflow as tf

from phalanx.train.model_dir.table_changes import (
    ChangedRows,
    apply_changes,
    find_base,
    find_cpu,
    split_changes,
    write_base,
)
from phalanx.train.types import Tensor, Trackable
from phalanx.train.variables import row_transfer
from phalanx.train.variables.row_snapshot import RowSnapshot
from phalanx.train.variables.row_transfer import (
    Piece,
    RowRange,
    read_range,
    split_chunks,
    split_rows,
    write_range,
)
from phalanx.train.variables.table import Table, describe_slice, set_tables_apart

LOG = logging.getLogger("phalanx")

PART_BYTES = 256 * 2**20
"""A task holds up to so many bytes of copies while it writes a part of a checkpoint."""

_VALUE = "VARIABLE_VALUE"


@dataclass(frozen=True)
class Slice:
    """Some rows of a table, under the name that the table has in a checkpoint."""

    key: str
    table: Table
    rows: RowRange
    copy: Tensor = None
    """A copy of the rows on their device, if they may change before they are written."""
    snapshot: RowSnapshot | None = None
    """What keeps the rows instead, while the training goes on."""

    @property
    def names(self) -> list[str]:
        return [self.key]

    @property
    def specs(self) -> list[str]:
        return [describe_slice(self.table.shape, self.rows.start, self.rows.length)]

    @property
    def nbytes(self) -> int:
        return self.table.nbytes // int(self.table.shape[0]) * self.rows.length

    def read(self) -> list[Tensor]:
        if self.snapshot is not None:
            with tf.device(self.rows.shard.device):
                numbers = tf.range(self.rows.length, dtype=tf.int64) + self.rows.begin
            return [self.snapshot.read(self.rows.shard, numbers)]
        return [read_range(self.rows) if self.copy is None else self.copy]

    def take_copy(self, snapshots: Collection[RowSnapshot]) -> Slice:
        """Return this slice with one of the snapshots, or else with a copy, when it is made."""
        snapshot = self.table.find_snapshot(self.rows.shard)
        if snapshot in snapshots:
            return replace(self, snapshot=snapshot)
        copy = read_range(self.rows)
        with tf.device(self.rows.shard.device):
            copy[:1].numpy()
        return replace(self, copy=copy)


Part: TypeAlias = Slice | ChangedRows
"""What one task writes of a large table."""


@dataclass
class SharedFiles:
    """Knows which tasks see the files of this one: they read and write their own rows."""

    _writers: dict[str, bool] = field(default_factory=dict)

    def can_write(self, device: str, directory: str) -> bool:
        """Whether a file that the task of a device writes to a directory is seen here."""
        if "/job:ps" not in device:
            return True
        if device not in self._writers:
            self._writers[device] = _probe(device, directory)
            if not self._writers[device]:
                LOG.info(
                    "%s does not share model_dir %s: the chief writes its tables, in pieces",
                    _name_task(device), directory,
                )  # fmt: skip
        return self._writers[device]

    def can_read(self, device: str, path: str) -> bool:
        """Whether the task of a device sees the same checkpoint as this one."""
        if "/job:ps" not in device:
            return True
        index = f"{path}.index"
        try:
            with tf.device(device):
                found = tf.io.read_file(index).numpy()
        except tf.errors.OpError:
            found = None
        is_same = found == tf.io.read_file(index).numpy()
        if not is_same:
            LOG.info("%s does not see %s: the chief sends its tables", _name_task(device), path)
        return bool(is_same)


def write_checkpoint(
    checkpoint: Trackable,
    prefix: str,
    files: SharedFiles,
    on_copied: Callable[[], None] | None = None,
    base: str | None = None,
) -> list[str]:
    """Write a checkpoint; each task writes the rows of large tables that it holds.

    Args:
        checkpoint: The object to save.
        prefix: The prefix of its files.
        files: Which tasks share the files of this one.
        on_copied: Called when variables may change again, before the large tables are written. Each
            task then has a snapshot of its rows, or a copy. Without it, there is neither.
        base: A full checkpoint: of large tables, only the rows that changed since then are written.

    Returns:
        The names of the large tables, which are stored in slices.
    """
    large = [table for table in _find_tables(checkpoint) if table.is_large]
    if not large:
        checkpoint.write(prefix)
        return []
    prefix = _make_absolute(prefix)
    temporary = f"{prefix}_temp"
    tf.io.gfile.makedirs(temporary)
    with set_tables_apart():
        checkpoint.write(f"{temporary}/model")
    keys = _find_keys(checkpoint, f"{temporary}/model")
    finished = [f"{temporary}/model"]
    if base is None:
        by_device = _split_tables(large, keys)
    else:
        finished.append(f"{temporary}/base")
        write_base(finished[-1], base)
        by_device = _find_changed_rows(large, keys)
    snapshots = _find_snapshots(large) if on_copied is not None else []
    with _open_snapshots(snapshots), ThreadPoolExecutor(len(by_device)) as pool:
        if on_copied is not None or base is not None:
            copies = pool.map(
                lambda parts: [part.take_copy(snapshots) for part in parts], by_device.values()
            )
            by_device = dict(zip(by_device, copies, strict=True))
        if on_copied is not None:
            on_copied()
        parts = [
            (f"{temporary}/part-{number}-{count}", device, slices)
            for number, device in enumerate(by_device)
            for count, slices in enumerate(_split_parts(by_device[device]))
        ]
        names = [name for name, _, _ in parts]
        by_device.clear()
        written = [pool.submit(_write_part, *parts.pop(0), files) for _ in names]
        for future in written:
            future.result()
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[*finished, *names],
        destination_prefix=prefix,
        delete_old_dirs=True,
    )
    return [keys[id(table)] for table in large]


def _find_snapshots(tables: Sequence[Table]) -> list[RowSnapshot]:
    """Return the snapshots of tables, each of them once: slots share that of their rows."""
    found = [snapshot for table in tables for snapshot in table.snapshots]
    return list(dict.fromkeys(found))


@contextlib.contextmanager
def _open_snapshots(snapshots: Sequence[RowSnapshot]) -> Iterator[None]:
    """Keep rows as they are now for the time of the `with` block."""
    try:
        for snapshot in snapshots:
            snapshot.open()
        yield
    finally:
        for snapshot in snapshots:
            snapshot.close()


def _split_tables(tables: Sequence[Table], keys: Mapping[int, str]) -> dict[str, list[Part]]:
    """Split all rows of tables into slices, by device; the model has the first row of each."""
    by_device: dict[str, list[Part]] = {}
    for table in tables:
        for rows in split_rows(table.shards):
            skip = int(rows.start == 0)
            if rows.length > skip:
                part = RowRange(
                    rows.shard, rows.begin + skip, rows.start + skip, rows.length - skip
                )
                slices = by_device.setdefault(rows.shard.device, [])
                slices.append(Slice(keys[id(table)], table, part))
    return by_device


def _find_changed_rows(tables: Sequence[Table], keys: Mapping[int, str]) -> dict[str, list[Part]]:
    """Split the rows of tables that have changed into parts, by device."""
    by_device: dict[str, list[Part]] = {}
    for table in tables:
        for part in split_changes(table, keys[id(table)]):
            by_device.setdefault(part.device, []).append(part)
    return by_device


def restore_checkpoint(checkpoint: Trackable, path: str) -> None:
    """Restore every variable of an object; the file may hold more."""
    with set_tables_apart():
        status = checkpoint.restore(path)
    status.assert_existing_objects_matched()
    status.expect_partial()
    tables = [table for table in _find_tables(checkpoint) if table.is_large]
    if not tables:
        return
    path, files = _make_absolute(path), SharedFiles()
    base = find_base(path)
    _restore_tables(checkpoint, base or path, tables, files)
    if base is not None:
        keys = _find_keys(checkpoint, path)
        apply_changes(path, {keys[id(table)]: table for table in tables}, files.can_read)
    for table in tables:
        table.mark_filled()


def _restore_tables(
    checkpoint: Trackable, path: str, tables: Sequence[Table], files: SharedFiles
) -> None:
    """Restore the large tables of a full checkpoint."""
    keys = _find_keys(checkpoint, path)
    by_device: dict[str, list[tuple[Table, Piece]]] = {}
    for table in tables:
        for piece in itertools.chain.from_iterable(split_chunks(table.shards)):
            by_device.setdefault(piece.rows.shard.device, []).append((table, piece))
    with ThreadPoolExecutor(len(by_device)) as pool:
        restored = [
            pool.submit(_read_pieces, path, keys, device, pieces, files)
            for device, pieces in by_device.items()
        ]
        for future in restored:
            future.result()


def verify_slices(path: str, name: str, shape: Sequence[int], dtype: tf.DType) -> None:
    """Read a table of a checkpoint in pieces, so that TensorFlow compares its checksums."""
    size = dtype.size * math.prod(shape[1:])
    step = max(1, row_transfer.CHUNK_BYTES // max(1, size))
    for start in range(0, shape[0], step):
        spec = describe_slice(shape, start, min(step, shape[0] - start))
        tf.raw_ops.RestoreV2(
            prefix=path, tensor_names=[name], shape_and_slices=[spec], dtypes=[dtype]
        )


def _write_part(prefix: str, device: str, parts: Sequence[Part], files: SharedFiles) -> None:
    names = [name for part in parts for name in part.names]
    specs = [spec for part in parts for spec in part.specs]

    def save(tensors: list[Tensor]) -> Tensor:
        saved = tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=names, shape_and_slices=specs, tensors=tensors
        )
        with tf.control_dependencies([saved] if saved is not None else []):
            return tf.constant(True)

    if files.can_write(device, prefix.rpartition("/")[0].rpartition("/")[0]):
        with tf.device(find_cpu(device)):
            tensors = [tensor for part in parts for tensor in part.read()]
            # One function, whose result arrives after everything is written.
            tf.function(lambda: save(tensors)).get_concrete_function()().numpy()
    else:
        save([tf.constant(tensor.numpy()) for part in parts for tensor in part.read()])


def _read_pieces(
    path: str,
    keys: Mapping[int, str],
    device: str,
    pieces: Sequence[tuple[Table, Piece]],
    files: SharedFiles,
) -> None:
    reader = find_cpu(device) if files.can_read(device, path) else None
    for table, piece in pieces:
        with tf.device(reader):
            # From the first row of the piece to its last one: a stored slice is read once.
            (values,) = tf.raw_ops.RestoreV2(
                prefix=path,
                tensor_names=[keys[id(table)]],
                shape_and_slices=[
                    describe_slice(table.shape, piece.start, piece.end - piece.start)
                ],
                dtypes=[piece.rows.shard.dtype],
            )
            values = piece.select(values, piece.start)
        write_range(piece.rows, values)


def _split_parts(parts: Sequence[Part]) -> Iterator[list[Part]]:
    part: list[Part] = []
    size = 0
    for each in parts:
        if part and size + each.nbytes > PART_BYTES:
            yield part
            part, size = [], 0
        part.append(each)
        size += each.nbytes
    if part:
        yield part


def _find_tables(root: Trackable) -> list[Table]:
    """Return the tables that an object saves."""
    return [
        child for child in tf.train.TrackableView(root).descendants() if isinstance(child, Table)
    ]


def _find_keys(root: Trackable, path: str) -> dict[int, str]:
    """Return the name of each table in a checkpoint, by the id of the table."""
    # TensorFlow has no public name for the proto that describes how objects are nested.
    from tensorflow.core.protobuf import trackable_object_graph_pb2  # noqa: PLC0415

    reader = tf.train.load_checkpoint(path)
    graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(
        reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")
    )
    keys: dict[int, str] = {}
    visited = {id(root)}
    queue = [(root, 0)]
    while queue:
        item, number = queue.pop(0)
        if isinstance(item, Table):
            named = {a.name: a.checkpoint_key for a in graph.nodes[number].attributes}
            keys[id(item)] = named[_VALUE]
        saved = {child.local_name: child.node_id for child in graph.nodes[number].children}
        for name, child in tf.train.TrackableView.children(item).items():
            if name in saved and id(child) not in visited:
                visited.add(id(child))
                queue.append((child, saved[name]))
    return keys


def _probe(device: str, directory: str) -> bool:
    """Whether the task of a device reads a file of this task, and writes one that is seen here."""
    here, there = (f"{directory}/.phalanx-probe-{uuid.uuid4().hex}" for _ in range(2))
    content = uuid.uuid4().hex.encode()
    try:
        tf.io.write_file(here, content)
        with tf.device(device):
            # Nothing is written where the directory is another one of the same name.
            if tf.io.read_file(here).numpy() != content:
                return False
            tf.io.write_file(there, content)
            tf.io.read_file(there).numpy()
        return bool(tf.io.read_file(there).numpy() == content)
    except tf.errors.OpError:
        return False
    finally:
        for path in (here, there):
            if tf.io.gfile.exists(path):
                tf.io.gfile.remove(path)


def _make_absolute(path: str) -> str:
    """Return a path that other tasks understand, whatever their working directory is."""
    return path if "://" in path else str(Path(path).absolute())


def _name_task(device: str) -> str:
    spec = tf.DeviceSpec.from_string(device)
    return f"{spec.job}-{spec.task}"
