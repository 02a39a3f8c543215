"""What is wrong with a file, and saving the rest of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from phalanx.errors import DataError
from phalanx.records.compression import Compression
from phalanx.records.framing import Chunk, Damage, walk
from phalanx.records.storage import file_size
from phalanx.records.writer import RecordWriter


@dataclass(frozen=True)
class Report:
    """What a file holds, and what is damaged in it."""

    path: str
    size: int
    records: int
    compression: Compression
    damage: tuple[Damage, ...]

    @property
    def is_sound(self) -> bool:
        """Is there no damage at all?"""
        return not self.damage


def verify(path: str, *, progress: Callable[[int], None] | None = None) -> Report:
    """Check every checksum of a file. `progress` is told the bytes of each part that was read."""
    return _read(path, None, progress)


def verify_all(
    paths: list[str],
    *,
    threads: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Report]:
    """Check many files, side by side."""
    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        return list(pool.map(lambda path: verify(path, progress=progress), paths))


def repair(path: str, out: str, *, progress: Callable[[int], None] | None = None) -> Report:
    """Write the sound records of a file to a new one; the report says what was dropped."""
    if os.path.abspath(path) == os.path.abspath(out):  # noqa: PTH100 - also for remote paths
        raise DataError(f"{out} is the damaged file itself: give the repaired one another name")
    with RecordWriter(out) as writer:
        return _read(path, writer, progress)


def _read(
    path: str, writer: RecordWriter | None, progress: Callable[[int], None] | None
) -> Report:
    records = 0
    damage: list[Damage] = []
    found: list[Compression] = []
    for part in walk(path, found=found):
        if isinstance(part, Chunk):
            records += len(part)
            if writer is not None:
                writer.write_framed(part.data, len(part))
        else:
            damage.append(part)
        if progress is not None:
            progress(len(part.data) if isinstance(part, Chunk) else part.size)
    return Report(path, file_size(path), records, found[0], tuple(damage))
