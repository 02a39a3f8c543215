"""Which task reads what: small files together, large ones in parts that begin with a record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from phalanx.records.compression import Compression, detect_compression
from phalanx.records.directory import FoundFile
from phalanx.records.framing import Part, read_chunks
from phalanx.records.index import RecordIndex
from phalanx.records.spark.partitions import Values
from phalanx.records.storage import is_remote, open_input

OPEN_COST = 4 << 20
"""Opening a file is worth reading so many bytes: many small files make few tasks."""

_FEWEST_TASKS = 64


@dataclass(frozen=True)
class Split:
    """A file, or some of its records, and the columns that its directories give."""

    path: str
    size: int
    part: Part | None
    values: Values


def plan_splits(
    files: Iterable[tuple[FoundFile, Values]], split_bytes: int
) -> list[tuple[Split, ...]]:
    """What each task reads, in the order of the files.

    Files are put together as long as that leaves enough tasks, and none reads much more than
    `split_bytes`, if the files can be split.
    """
    splits = [
        Split(file.path, size, part, values)
        for file, values in files
        for size, part in _cut(file, split_bytes)
    ]
    total = sum(split.size + OPEN_COST for split in splits)
    target = max(OPEN_COST, min(split_bytes, total // _FEWEST_TASKS))
    tasks: list[list[Split]] = []
    filled = 0
    for split in splits:
        if not tasks or filled + split.size > target:
            tasks.append([])
            filled = 0
        tasks[-1].append(split)
        filled += split.size + OPEN_COST
    return [tuple(task) for task in tasks]


def _cut(file: FoundFile, split_bytes: int) -> Iterator[tuple[int, Part | None]]:
    if file.size <= split_bytes * 1.1:
        yield file.size, None
        return
    parts = list(_find_parts(file, split_bytes))
    if len(parts) < 2:
        yield file.size, None
        return
    for part in parts:
        yield part.stop - part.start, part


def _find_parts(file: FoundFile, split_bytes: int) -> Iterator[Part]:
    """Parts of about so many bytes. A compressed file has none, nor has one far away that has no
    index: all of it would have to be fetched to find where records begin."""
    with open_input(file.path) as opened:
        if detect_compression(opened) is not Compression.NONE:
            return
    index = RecordIndex.load(file.path)
    if index is None and is_remote(file.path):
        return
    start = first = 0
    for offset, number in _offsets(index) if index else _scan_offsets(file.path):
        if offset - start >= split_bytes:
            yield Part(start, offset, first)
            start, first = offset, number
    if start < file.size:
        yield Part(start, file.size, first)


def _offsets(index: RecordIndex) -> Iterator[tuple[int, int]]:
    for place, offset in enumerate(index.offsets[:-1]):
        yield offset, place * index.stride


def _scan_offsets(path: str) -> Iterator[tuple[int, int]]:
    """Where records begin: some of them, as many as there are chunks of a megabyte."""
    for chunk in read_chunks(path, compression=Compression.NONE, check=False):
        yield chunk.offset, chunk.index
