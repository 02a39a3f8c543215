"""The same records in other files: split, merged, shuffled. Records are copied as they are."""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from phalanx.errors import DataError
from phalanx.open_files import allow_open_files
from phalanx.records.framing import Paths, count_records, read_records
from phalanx.records.storage import expand, file_size, is_remote
from phalanx.records.writer import BUFFER, RecordWriter, ShardedWriter

MEMORY = 512 << 20
"""How many bytes of records a shuffle holds at a time."""

Progress = Callable[[int], None]


def merge(paths: Paths, out: str, *, progress: Progress | None = None) -> int:
    """Write the records of many files to one, in their order; how many is returned."""
    files = _inputs(paths, [out])
    with RecordWriter(out) as writer:
        _copy(files, writer, progress)
        return writer.count


def split(
    paths: Paths, out: str, shards: int, *, progress: Progress | None = None
) -> list[tuple[str, int]]:
    """Deal the records out to `shards` files in turn; each file and its count is returned."""
    with ShardedWriter(out, shards) as writer:
        _copy(_inputs(paths, writer.paths), writer, progress)
    return [(one.path, one.count) for one in writer.writers]


def split_by_shares(
    paths: Paths, shares: dict[str, float], *, progress: Progress | None = None
) -> list[tuple[str, int]]:
    """Cut the records, in their order, into files with these shares of them.

    `{"train.tfrecord": 0.8, "eval.tfrecord": 0.2}`: the counts are exact, rounded to whole records.
    """
    if not shares or not all(0 < share < math.inf for share in shares.values()):
        raise DataError("every file's share must be a number greater than 0")
    files = _inputs(paths, list(shares))
    total, whole = sum(count_records(path) for path in files), sum(shares.values())
    ends, sum_so_far = [], 0.0
    for share in shares.values():
        sum_so_far += share
        ends.append(round(total * sum_so_far / whole))
    with ExitStack() as stack:
        writers = [stack.enter_context(RecordWriter(name)) for name in shares]
        place = 0
        for number, record in enumerate(read_records(files)):
            while number >= ends[place]:
                place += 1
            writers[place].write(record)
            if progress is not None:
                progress(len(record) + 16)
    return [(writer.path, writer.count) for writer in writers]


def shuffle(
    paths: Paths,
    out: str,
    *,
    seed: int | None = None,
    shards: int | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> int:
    """Write the records in an order in which every order is as likely as any other.

    Records that are more than `memory` bytes are first dealt out at random to temporary files, each
    small enough to be shuffled in memory.
    """
    order = random.Random(seed)
    names = [out] if shards is None else ShardedWriter(out, shards).paths
    files = _inputs(paths, names)
    # Twice as many as needed: the deal is not quite even, and compressed records are larger inside.
    heaps = 1 + 2 * sum(map(file_size, files)) // memory
    with ExitStack() as stack:
        writer: RecordWriter | ShardedWriter
        if shards is None:
            writer = stack.enter_context(RecordWriter(out))
        else:
            writer = stack.enter_context(ShardedWriter(out, shards))
        if heaps == 1:
            heap_files = [files]
        else:
            near = None if is_remote(out) else Path(out).parent
            if near is not None:
                near.mkdir(parents=True, exist_ok=True)
            directory = stack.enter_context(
                tempfile.TemporaryDirectory(prefix=".shuffle-", dir=near)
            )
            heap_files = [[f"{directory}/{number}"] for number in range(heaps)]
            allow_open_files(heaps + 64)
            buffer = min(BUFFER, memory // heaps)
            with ExitStack() as heap_stack:
                writers = [
                    heap_stack.enter_context(RecordWriter(name, buffer=buffer))
                    for [name] in heap_files
                ]
                for record in read_records(files):
                    order.choice(writers).write(record)
        for names in heap_files:
            records = list(read_records(names))
            order.shuffle(records)
            for record in records:
                writer.write(record)
                if progress is not None:
                    progress(len(record) + 16)
            if heaps > 1:
                Path(names[0]).unlink()
        return writer.count


def _copy(
    files: list[str], writer: RecordWriter | ShardedWriter, progress: Progress | None
) -> None:
    for record in read_records(files):
        writer.write(record)
        if progress is not None:
            progress(len(record) + 16)


def _inputs(paths: Paths, outputs: list[str]) -> list[str]:
    """The files to read; none of them may be written to."""
    files = expand(paths)
    both = {_whole(path) for path in files} & {_whole(path) for path in outputs}
    if both:
        raise DataError(f"{min(both)} would be read and written: give the output another name")
    return files


def _whole(path: str) -> str:
    return path if is_remote(path) else str(Path(path).absolute())
