"""Reading the output of a task from the file it is written to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_SECONDS = 0.2
_CHUNK = 1 << 20
_TAIL_BYTES = 64 << 10


def read_log(path: Path, is_over: Callable[[], bool] | None = None) -> Iterator[str]:
    """The lines of a file that may not be there yet; given `is_over`, goes on until that is true.

    A last line without an end is given once nothing more can come.
    """
    place, partial = 0, b""
    while True:
        # Asked before reading, so that what was written just before the end is not missed.
        last = is_over is None or is_over()
        try:
            with path.open("rb") as log:
                log.seek(place)
                new = log.read(_CHUNK)
        except FileNotFoundError:
            new = b""
        place += len(new)
        *lines, partial = (partial + new).split(b"\n")
        yield from map(_decode, lines)
        if len(new) == _CHUNK:
            continue
        if last:
            break
        if not new:
            time.sleep(_POLL_SECONDS)
    if partial:
        yield _decode(partial)


def read_tail(path: Path, count: int) -> list[str]:
    """The last lines of a file that may be long, or not be there, but for empty ones."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _TAIL_BYTES))
            lines = log.read().split(b"\n")
    except FileNotFoundError:
        return []
    return [_decode(line) for line in lines if line.strip()][-count:]


def _decode(line: bytes) -> str:
    return line.decode(errors="replace")
