"""Incremental checkpoints: of large tables, only the rows that changed since a full checkpoint.

An incremental checkpoint names its base, the full checkpoint before it, and has everything but
large tables as a full one has. To restore it, the tables of the base are restored first, and then
the rows that changed. So it needs its base, and no other incremental checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import numpy as np
import tensorflow as tf

from phalanx.errors import CheckpointError
from phalanx.train.types import Array, Tensor, TFVariable
from phalanx.train.variables.described_variable import DescribedVariable
from phalanx.train.variables.row_snapshot import RowSnapshot
from phalanx.train.variables.row_transfer import chunk_rows, read_spans, write_rows

_BASE = "_PHALANX_BASE"
_CHANGED = "/.CHANGED/"


@dataclass(frozen=True)
class Spans:
    """Which rows of a table one of its shards has."""

    begins: Sequence[int]
    starts: Sequence[int]
    lengths: Sequence[int]

    @classmethod
    def read(cls, table: DescribedVariable, shard: int) -> Spans:
        mine = [span for span in read_spans(table.shards) if span.shard == shard]
        return cls([s.begin for s in mine], [s.start for s in mine], [s.length for s in mine])

    def number(self, local: Tensor) -> Tensor:
        """Return the numbers in the table of some rows of the shard."""
        begins, starts = tf.constant(self.begins, tf.int64), tf.constant(self.starts, tf.int64)
        span = tf.searchsorted(begins, local, side="right") - 1
        return local + tf.gather(starts - begins, span)

    def locate(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the numbers of rows in the shard, and whether it has them."""
        begins, starts = tf.constant(self.begins, tf.int64), tf.constant(self.starts, tf.int64)
        span = tf.searchsorted(starts, rows, side="right") - 1
        known = tf.maximum(span, 0)
        offset = rows - tf.gather(starts, known)
        is_mine = (span >= 0) & (offset < tf.gather(tf.constant(self.lengths, tf.int64), known))
        return tf.gather(begins, known) + offset, is_mine


@dataclass(frozen=True)
class ChangedRows:
    """The rows of one part of a shard that have changed."""

    key: str
    table: DescribedVariable
    shard: TFVariable
    changed: TFVariable
    """Which rows of the shard have changed."""
    begin: int
    end: int
    """The first row of the part in its shard, and the one after its last."""
    spans: Spans
    local: Tensor = None
    """The numbers of the rows in the shard."""
    copy: Tensor = None
    """The rows, if no snapshot has them."""
    snapshot: RowSnapshot | None = None
    """What keeps the rows, while the training goes on."""

    @property
    def device(self) -> str:
        return str(self.shard.device)

    @property
    def names(self) -> list[str]:
        return [f"{self.key}/rows", f"{self.key}/values"]

    @property
    def specs(self) -> list[str]:
        return ["", ""]

    @property
    def nbytes(self) -> int:
        row = self.shard.dtype.size * math.prod(self.shard.shape[1:])
        return int(self.local.shape[0]) * int(self.local.dtype.size + row)

    def read(self) -> list[Tensor]:
        with tf.device(self.device):
            rows = self.spans.number(self.local)
        values = self.copy
        if self.snapshot is not None:
            values = self.snapshot.read(self.shard, self.local)
        return [rows, values]

    def take_copy(self, snapshots: Collection[RowSnapshot]) -> ChangedRows:
        """Return this part with its rows: in one of the snapshots, or else in a copy."""
        snapshot = self.table.find_snapshot(self.shard)
        with tf.device(self.device):
            local = tf.where(self.changed[self.begin : self.end])[:, 0] + self.begin
            if snapshot in snapshots:
                local[:1].numpy()
                return replace(self, local=local, snapshot=snapshot)
            values = tf.gather(self.shard, local)
            values[:1].numpy()
        return replace(self, local=local, copy=values)


def split_changes(table: DescribedVariable, key: str) -> Iterator[ChangedRows]:
    """Split a table into parts, of each of which the changed rows are written."""
    pairs = zip(table.shards, table.changes, strict=True)
    for number, (shard, changed) in enumerate(pairs):
        spans, rows, step = Spans.read(table, number), int(shard.shape[0]), chunk_rows(shard)
        for part, begin in enumerate(range(0, rows, step)):
            name = f"{key}{_CHANGED}{number}-{part}"
            end = min(begin + step, rows)
            yield ChangedRows(name, table, shard, changed, begin, end, spans)


def write_base(prefix: str, base: str) -> None:
    """Write a part of a checkpoint that names its base."""
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=[_BASE], shape_and_slices=[""],
        tensors=[tf.constant(PurePosixPath(base).name)],
    )  # fmt: skip


def find_base(path: str) -> str | None:
    """Return the full checkpoint that an incremental one needs; None if it is full itself."""
    reader = tf.train.load_checkpoint(path)
    if not reader.has_tensor(_BASE):
        return None
    # In the same directory, whatever the checkpoint says.
    name = PurePosixPath(reader.get_tensor(_BASE).decode()).name
    return f"{path.rpartition('/')[0]}/{name}"


def check_base(path: str, base: str) -> None:
    """Raise a CheckpointError if the base of an incremental checkpoint is none."""
    if find_base(base) is not None:
        raise CheckpointError(f"{path} needs {base}, which is not complete either")


def find_changes(path: str) -> dict[str, list[str]]:
    """Return the names under which a checkpoint has changed rows, by the name of their table."""
    found: dict[str, list[str]] = {}
    for name in sorted(tf.train.load_checkpoint(path).get_variable_to_shape_map()):
        table, is_changed, part = name.partition(_CHANGED)
        if is_changed and part.endswith("/rows"):
            found.setdefault(table, []).append(name.removesuffix("/rows"))
    return found


def apply_changes(
    path: str, tables: Mapping[str, DescribedVariable], can_read: Callable[[str, str], bool]
) -> None:
    """Read the rows that changed, and write them to the shards that hold them.

    Args:
        path: An incremental checkpoint.
        tables: The tables to update, by their name in the checkpoint.
        can_read: Whether the task of a device sees a checkpoint; else this task sends the rows.
    """
    changes = find_changes(path)
    readable: dict[str, bool] = {}
    for key, table in tables.items():
        for number, shard in enumerate(table.shards):
            device = shard.device
            if device not in readable:
                readable[device] = can_read(device, path)
            spans = Spans.read(table, number)
            for name in changes.get(key, []):
                with tf.device(find_cpu(device) if readable[device] else None):
                    rows, values = tf.raw_ops.RestoreV2(
                        prefix=path, tensor_names=[f"{name}/rows", f"{name}/values"],
                        shape_and_slices=["", ""], dtypes=[tf.int64, shard.dtype],
                    )  # fmt: skip
                    local, is_mine = spans.locate(rows)
                    local, mine = local[is_mine], values[is_mine]
                write_rows(shard, local, mine)


def read_tensor(path: str, key: str) -> Array:
    """Return a whole tensor of a checkpoint, which may be incremental."""
    base, changes = find_base(path), find_changes(path)
    if base is None or key not in changes:
        return np.asarray(tf.train.load_checkpoint(path).get_tensor(key))
    check_base(path, base)
    value, reader = read_tensor(base, key), tf.train.load_checkpoint(path)
    for name in changes[key]:
        value[reader.get_tensor(f"{name}/rows")] = reader.get_tensor(f"{name}/values")
    return value


def find_cpu(device: str) -> str:
    """Return the device of the same task that reads and writes files."""
    return str(
        tf.DeviceSpec.from_string(device).replace(device_type="CPU", device_index=0).to_string()
    )
