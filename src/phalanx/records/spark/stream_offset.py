"""The offset of a stream: the files it has read, as Spark stores them in its checkpoint.

Files are identified by their paths, so that a new file with an old date is read too. To bound the
size of an offset, files older than a limit are dropped from it and never read.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from phalanx.errors import DataError
from phalanx.records.storage.listing import FoundFile

_SIZE = 8


@dataclass(frozen=True)
class StreamOffset:
    """The files that were read: those older than `since`, and those whose hash is in `hashes`."""

    hashes: frozenset[bytes] = frozenset()
    since: float = 0.0

    def covers(self, file: FoundFile) -> bool:
        """Was the file read, or is it too old to be read?"""
        return file.modified < self.since or _hash(file.path) in self.hashes

    def add(
        self, files: Iterable[FoundFile], found: Iterable[FoundFile], max_age: float
    ) -> StreamOffset:
        """The offset after these files; of all files `found`, those too old are dropped."""
        new = list(files)
        newest = max((file.modified for file in new), default=0.0)
        since = max(self.since, newest - max_age)
        old = {_hash(file.path) for file in found if file.modified < since}
        return StreamOffset(self.hashes - old | {_hash(file.path) for file in new}, since)

    def dump(self) -> dict[str, str]:
        """The offset as Spark stores it."""
        joined = b"".join(sorted(self.hashes))
        return {"seen": base64.b64encode(joined).decode(), "since": repr(self.since)}

    @classmethod
    def load(cls, offset: dict[str, str]) -> StreamOffset:
        """The offset from what Spark stored."""
        try:
            joined = base64.b64decode(offset["seen"])
            since = float(offset["since"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the checkpoint is not one of format('tfrecord'): {error!r}") from None
        starts = range(0, len(joined), _SIZE)
        return cls(frozenset(joined[start : start + _SIZE] for start in starts), since)


def select_files_between(
    start: StreamOffset, end: StreamOffset, files: Iterable[FoundFile]
) -> list[FoundFile]:
    """The files that are in `end` and not in `start`, the oldest first."""
    wanted = end.hashes - start.hashes
    chosen = {hashed: file for file in files if (hashed := _hash(file.path)) in wanted}
    if len(chosen) < len(wanted):
        raise DataError(
            f"{len(wanted) - len(chosen)} of {len(wanted)} files that the stream was about to read "
            "no longer exist: restore them, or start with a new checkpoint"
        )
    return sorted(chosen.values(), key=lambda file: (file.modified, file.path))


def _hash(path: str) -> bytes:
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=_SIZE).digest()
