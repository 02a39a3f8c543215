"""Verify, repair, merge, split and shuffle whole TFRecord files; records are copied unchanged."""

import math
import os
import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from phalanx.errors import DataError
from phalanx.open_files import allow_more_open_files
from phalanx.records.compression import Compression
from phalanx.records.framing import OVERHEAD, Damage, count_records, read_records, walk
from phalanx.records.html import draw_table, format_bytes
from phalanx.records.storage import file_size, is_remote
from phalanx.records.storage.listing import expand
from phalanx.records.types import Paths, Progress
from phalanx.records.writer import BUFFER, RecordWriter, ShardedWriter

SHUFFLE_MEMORY = 512 << 20
"""How many bytes of records a shuffle holds in memory."""


@dataclass(frozen=True)
class Report:
    """The result of verifying or repairing a file: its size, records and damage."""

    path: str
    size: int
    records: int
    compression: Compression
    damage: tuple[Damage, ...]

    @property
    def is_sound(self) -> bool:
        return not self.damage

    def _repr_html_(self) -> str:
        size = f"{self.records:,} records, {format_bytes(self.size)}, {self.compression}"
        state = "sound" if self.is_sound else "damaged"
        rows = [(each.offset, each.size, each.reason) for each in self.damage]
        return draw_table(f"{self.path}: {size}, {state}", ("offset", "bytes", "damage"), rows)


def verify(path: str, *, progress: Progress | None = None) -> Report:
    """Check every checksum of a file.

    Args:
        path: The file.
        progress: Called with the number of bytes of each part that was read.

    Returns:
        What the file holds, and where it is damaged.
    """
    return _read(path, None, progress)


def verify_all(
    paths: list[str], *, threads: int | None = None, progress: Progress | None = None
) -> list[Report]:
    """Check many files in parallel.

    Args:
        paths: The files.
        threads: How many to check at a time; by default one for each CPU.
        progress: Called with the number of bytes of each part that was read, from any thread.

    Returns:
        A report for each file, in the order of `paths`.
    """
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        return list(pool.map(lambda path: verify(path, progress=progress), paths))


def repair(path: str, out: str, *, progress: Progress | None = None) -> Report:
    """Copy the undamaged records of a file to a new file.

    Args:
        path: The damaged file.
        out: The file to write.
        progress: Called with the number of bytes of each part that was read.

    Returns:
        What was copied, and the damage that was left out.

    Raises:
        DataError: `out` is the damaged file itself.
    """
    if os.path.abspath(path) == os.path.abspath(out):  # noqa: PTH100 - also for remote paths
        raise DataError(f"{out} is the damaged file itself: give the repaired one another name")
    with RecordWriter(out) as writer:
        return _read(path, writer, progress)


def _read(path: str, writer: RecordWriter | None, progress: Progress | None) -> Report:
    records = 0
    damage: list[Damage] = []
    found: list[Compression] = []
    for part in walk(path, found=found):
        if isinstance(part, Damage):
            size = part.size
            damage.append(part)
        else:
            size = len(part.data)
            records += len(part)
            if writer is not None:
                writer.write_framed(part.data, len(part))
        if progress is not None:
            progress(size)
    return Report(path, file_size(path), records, found[0], tuple(damage))


def merge(paths: Paths, out: str, *, progress: Progress | None = None) -> int:
    """Write the records of many files to one, in order, and return their number."""
    files = _expand_inputs(paths, [out])
    with RecordWriter(out) as writer:
        for record in read_records(files):
            _write(writer, record, progress)
        return writer.count


def split(
    paths: Paths, out: str, shards: int, *, progress: Progress | None = None
) -> list[tuple[str, int]]:
    """Distribute the records over `shards` files in turn; returns each file and its count."""
    with ShardedWriter(out, shards) as writer:
        for record in read_records(_expand_inputs(paths, writer.paths)):
            _write(writer, record, progress)
    return [(one.path, one.count) for one in writer.writers]


def split_by_shares(
    paths: Paths, shares: dict[str, float], *, progress: Progress | None = None
) -> list[tuple[str, int]]:
    """Split the records, in order, into files by shares; returns each file and its count.

    `{"train.tfrecord": 0.8, "eval.tfrecord": 0.2}`: the counts are exact, rounded to whole records.
    """
    if not shares or not all(0 < share < math.inf for share in shares.values()):
        raise DataError("every file's share must be a number greater than 0")
    files = _expand_inputs(paths, list(shares))
    total, whole = sum(count_records(path) for path in files), sum(shares.values())
    ends = [round(total * end / whole) for end in accumulate(shares.values())]
    with ExitStack() as stack:
        writers = [stack.enter_context(RecordWriter(name)) for name in shares]
        current = 0
        for number, record in enumerate(read_records(files)):
            while number >= ends[current]:
                current += 1
            _write(writers[current], record, progress)
    return [(writer.path, writer.count) for writer in writers]


def shuffle(
    paths: Paths,
    out: str,
    *,
    seed: int | None = None,
    shards: int | None = None,
    memory: int = SHUFFLE_MEMORY,
    progress: Progress | None = None,
) -> int:
    """Write the records in a uniformly random order, and return their number.

    If they exceed `memory` bytes, they are first distributed at random to temporary files that are
    each small enough to be shuffled in memory.
    """
    order = random.Random(seed)
    writer: RecordWriter | ShardedWriter
    if shards is None:
        writer, outputs = RecordWriter(out), [out]
    else:
        writer = ShardedWriter(out, shards)
        outputs = writer.paths
    files = _expand_inputs(paths, outputs)
    # Twice as many as needed: their sizes vary, and compressed records are larger in memory.
    buckets = 1 + 2 * sum(map(file_size, files)) // memory
    with ExitStack() as stack:
        stack.enter_context(writer)
        if buckets == 1:
            bucket_files = [files]
        else:
            parent = None if is_remote(out) else Path(out).parent
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            directory = stack.enter_context(
                tempfile.TemporaryDirectory(prefix=".shuffle-", dir=parent)
            )
            bucket_files = [[f"{directory}/{number}"] for number in range(buckets)]
            allow_more_open_files(buckets + 64)
            buffer = min(BUFFER, memory // buckets)
            with ExitStack() as bucket_stack:
                bucket_writers = [
                    bucket_stack.enter_context(RecordWriter(name, buffer=buffer))
                    for [name] in bucket_files
                ]
                for record in read_records(files):
                    order.choice(bucket_writers).write(record)
        for names in bucket_files:
            records = list(read_records(names))
            order.shuffle(records)
            for record in records:
                _write(writer, record, progress)
            if buckets > 1:
                Path(names[0]).unlink()
        return writer.count


def _write(writer: RecordWriter | ShardedWriter, record: bytes, progress: Progress | None) -> None:
    writer.write(record)
    if progress is not None:
        progress(len(record) + OVERHEAD)


def _expand_inputs(paths: Paths, outputs: list[str]) -> list[str]:
    """The files to read; none of them may be an output."""
    files = expand(paths)
    both = {_absolute(path) for path in files} & {_absolute(path) for path in outputs}
    if both:
        raise DataError(f"{min(both)} would be read and written: give the output another name")
    return files


def _absolute(path: str) -> str:
    return path if is_remote(path) else str(Path(path).absolute())
