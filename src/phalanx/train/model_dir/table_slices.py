"""Large variables in checkpoints: slices of one tensor, written and read by those that hold them.

TensorFlow saves the model, with the first row of each large variable. The other rows are saved
beside it, in slices, and merged into one checkpoint, from which TensorFlow alone restores them.
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
    find_changes,
    find_cpu,
    split_changes,
    write_base,
)
from phalanx.train.types import Tensor, Trackable
from phalanx.train.variables import row_transfer
from phalanx.train.variables.described_variable import (
    DescribedVariable,
    describe_slice,
    set_large_apart,
)
from phalanx.train.variables.row_snapshot import RowSnapshot
from phalanx.train.variables.row_transfer import (
    Piece,
    RowRange,
    read_range,
    split_chunks,
    split_rows,
    write_range,
)

LOG = logging.getLogger("phalanx")

PART_BYTES = 256 * 2**20
"""A task holds up to so many bytes of copies while it writes a part of a checkpoint."""

_VALUE = "VARIABLE_VALUE"


@dataclass(frozen=True)
class Slice:
    """Some rows of a variable, under the name that it has in a checkpoint."""

    key: str
    variable: DescribedVariable
    rows: RowRange
    copy: Tensor = None
    """A copy of the rows on their device, if they may change before they are written."""
    snapshot: RowSnapshot | None = None
    """What keeps the rows instead, while the training goes on."""

    @property
    def device(self) -> str:
        return str(self.rows.shard.device)

    @property
    def names(self) -> list[str]:
        return [self.key]

    @property
    def specs(self) -> list[str]:
        return [describe_slice(self.variable.shape, self.rows.start, self.rows.length)]

    @property
    def nbytes(self) -> int:
        return self.variable.nbytes // int(self.variable.shape[0]) * self.rows.length

    def read(self) -> list[Tensor]:
        if self.snapshot is not None:
            with tf.device(self.rows.shard.device):
                numbers = tf.range(self.rows.length, dtype=tf.int64) + self.rows.begin
            return [self.snapshot.read(self.rows.shard, numbers)]
        return [read_range(self.rows) if self.copy is None else self.copy]

    def take_copy(self, snapshots: Collection[RowSnapshot]) -> Slice:
        """Return this slice with one of the snapshots, or else with a copy, when it is made."""
        snapshot = self.variable.find_snapshot(self.rows.shard)
        if snapshot in snapshots:
            return replace(self, snapshot=snapshot)
        copy = read_range(self.rows)
        with tf.device(self.rows.shard.device):
            copy[:1].numpy()
        return replace(self, copy=copy)


Part: TypeAlias = Slice | ChangedRows
"""What one task writes of a large variable."""


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
                    "%s does not share model_dir %s: the chief writes its part, in pieces",
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
            LOG.info("%s does not see %s: the chief sends its part", _name_task(device), path)
        return bool(is_same)


def write_checkpoint(
    checkpoint: Trackable,
    prefix: str,
    files: SharedFiles,
    on_copied: Callable[[], None] | None = None,
    base: str | None = None,
) -> list[str]:
    """Write a checkpoint; each task writes the rows of large variables that it holds.

    Args:
        checkpoint: The object to save.
        prefix: The prefix of its files.
        files: Which tasks share the files of this one.
        on_copied: Called when variables may change again, before the large ones are written. Each
            task then has a snapshot of its rows, or a copy. Without it, there is neither.
        base: A full checkpoint: of large tables, only the rows that changed since then are written.

    Returns:
        The names of the large variables, which are stored in slices.
    """
    large = _find_large(checkpoint)
    if not large:
        checkpoint.write(prefix)
        return []
    prefix = _make_absolute(prefix)
    temporary = f"{prefix}_temp"
    tf.io.gfile.makedirs(temporary)
    with set_large_apart():
        checkpoint.write(f"{temporary}/model")
    keys = _find_keys(checkpoint, f"{temporary}/model")
    finished = [f"{temporary}/model"]
    if base is not None:
        finished.append(f"{temporary}/base")
        write_base(finished[-1], base)
    by_device = _split_parts_by_device(large, keys, base is not None)
    snapshots = _find_snapshots(large) if on_copied is not None else []
    with _open_snapshots(snapshots), ThreadPoolExecutor(len(by_device)) as pool:
        copies = pool.map(
            lambda parts: [
                part.take_copy(snapshots)
                if on_copied is not None or isinstance(part, ChangedRows)
                else part
                for part in parts
            ],
            by_device.values(),
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
    return [keys[id(variable)] for variable in large]


def _find_snapshots(variables: Sequence[DescribedVariable]) -> list[RowSnapshot]:
    """Return the snapshots of variables, each of them once: slots share that of their rows."""
    found = [snapshot for variable in variables for snapshot in variable.snapshots]
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


def _split_parts_by_device(
    variables: Sequence[DescribedVariable], keys: Mapping[int, str], has_base: bool
) -> dict[str, list[Part]]:
    """Split variables into parts, by device: all rows, or those that changed if that is noted."""
    by_device: dict[str, list[Part]] = {}
    for variable in variables:
        key = keys[id(variable)]
        is_partial = has_base and variable.changes
        split = split_changes(variable, key) if is_partial else _split_slices(variable, key)
        for part in split:
            by_device.setdefault(part.device, []).append(part)
    return by_device


def _split_slices(variable: DescribedVariable, key: str) -> Iterator[Slice]:
    """Split all rows of a variable into slices; the model has the first row."""
    for rows in split_rows(variable.shards):
        skip = int(rows.start == 0)
        if rows.length > skip:
            part = RowRange(rows.shard, rows.begin + skip, rows.start + skip, rows.length - skip)
            yield Slice(key, variable, part)


def restore_checkpoint(checkpoint: Trackable, path: str) -> None:
    """Restore every variable of an object; the file may hold more."""
    with set_large_apart():
        status = checkpoint.restore(path)
    status.assert_existing_objects_matched()
    status.expect_partial()
    large = _find_large(checkpoint)
    if not large:
        return
    path, files = _make_absolute(path), SharedFiles()
    base = find_base(path)
    if base is None:
        _restore_large(checkpoint, path, large, files)
    else:
        keys, changes = _find_keys(checkpoint, path), find_changes(path)
        partial = {keys[id(each)]: each for each in large if keys[id(each)] in changes}
        whole = [each for each in large if keys[id(each)] not in changes]
        _restore_large(checkpoint, path, whole, files)
        _restore_large(checkpoint, base, list(partial.values()), files)
        apply_changes(path, partial, files.can_read)
    for variable in large:
        variable.mark_filled()


def _restore_large(
    checkpoint: Trackable,
    path: str,
    variables: Sequence[DescribedVariable],
    files: SharedFiles,
) -> None:
    """Restore large variables from a checkpoint that has all of their rows."""
    if not variables:
        return
    keys = _find_keys(checkpoint, path)
    by_device: dict[str, list[tuple[DescribedVariable, Piece]]] = {}
    for variable in variables:
        for piece in itertools.chain.from_iterable(split_chunks(variable.shards)):
            by_device.setdefault(piece.rows.shard.device, []).append((variable, piece))
    with ThreadPoolExecutor(len(by_device)) as pool:
        restored = [
            pool.submit(_read_pieces, path, keys, device, pieces, files)
            for device, pieces in by_device.items()
        ]
        for future in restored:
            future.result()


def verify_slices(path: str, name: str, shape: Sequence[int], dtype: tf.DType) -> None:
    """Read a variable of a checkpoint in pieces, so that TensorFlow compares its checksums."""
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
    pieces: Sequence[tuple[DescribedVariable, Piece]],
    files: SharedFiles,
) -> None:
    reader = find_cpu(device) if files.can_read(device, path) else None
    for variable, piece in pieces:
        with tf.device(reader):
            # From the first row of the piece to its last one: a stored slice is read once.
            (values,) = tf.raw_ops.RestoreV2(
                prefix=path,
                tensor_names=[keys[id(variable)]],
                shape_and_slices=[
                    describe_slice(variable.shape, piece.start, piece.end - piece.start)
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


def _find_large(root: Trackable) -> list[DescribedVariable]:
    """Return the large variables that an object saves."""
    children = tf.train.TrackableView(root).descendants()
    return [c for c in children if isinstance(c, DescribedVariable) and c.is_large]


def _find_keys(root: Trackable, path: str) -> dict[int, str]:
    """Return the name of each described variable in a checkpoint, by its id."""
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
        if isinstance(item, DescribedVariable):
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
