"""Which files a stream has read: its offset, as a small text that Spark keeps in its checkpoint.

A file is known by its name, so that one with an old date is read, too. Names of files older than
a limit are forgotten, and no such file is read: otherwise an offset would grow for ever.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from phalanx.errors import DataError
from phalanx.records.directory import FoundFile

_SIZE = 8


@dataclass(frozen=True)
class Seen:
    """The files that were read: those from before `since`, and those whose names are here."""

    names: frozenset[bytes] = frozenset()
    since: float = 0.0

    def has(self, file: FoundFile) -> bool:
        """Was the file read, or is it too old to be?"""
        return file.modified < self.since or _hash(file.path) in self.names

    def add(self, files: Iterable[FoundFile], found: Iterable[FoundFile], max_age: float) -> Seen:
        """These files, too. What was read before and is far older than they are is forgotten;
        `found` are all files there are."""
        new = list(files)
        newest = max((file.modified for file in new), default=0.0)
        since = max(self.since, newest - max_age)
        old = {_hash(file.path) for file in found if file.modified < since}
        return Seen(self.names - old | {_hash(file.path) for file in new}, since)

    def dump(self) -> dict[str, str]:
        """As a stream's offset."""
        joined = b"".join(sorted(self.names))
        return {"seen": base64.b64encode(joined).decode(), "since": repr(self.since)}

    @classmethod
    def load(cls, offset: dict[str, str]) -> Seen:
        """From a stream's offset."""
        try:
            joined = base64.b64decode(offset["seen"])
            since = float(offset["since"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the checkpoint is not one of format('tfrecord'): {error!r}") from None
        places = range(0, len(joined), _SIZE)
        return cls(frozenset(joined[place : place + _SIZE] for place in places), since)


def between(start: Seen, end: Seen, files: Iterable[FoundFile]) -> list[FoundFile]:
    """The files that `end` has and `start` has not."""
    wanted = end.names - start.names
    chosen = {hashed: file for file in files if (hashed := _hash(file.path)) in wanted}
    if len(chosen) < len(wanted):
        raise DataError(
            f"{len(wanted) - len(chosen)} of {len(wanted)} files that the stream was about to read "
            "are gone: put them back, or begin with a new checkpoint"
        )
    return sorted(chosen.values(), key=lambda file: (file.modified, file.path))


def _hash(path: str) -> bytes:
    return hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=_SIZE).digest()
