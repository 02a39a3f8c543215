"""Reading the output of a task from its log file."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_SECONDS = 0.2
_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 64 << 10


def read_log(path: Path, is_over: Callable[[], bool] | None = None) -> Iterator[str]:
    """Yield the lines of a file that may not exist yet; with `is_over`, until that returns true."""
    offset, partial = 0, b""
    while True:
        # Asked before the read, so that output written just before the end is not missed.
        last = is_over is None or is_over()
        try:
            with path.open("rb") as log:
                log.seek(offset)
                new = log.read(_CHUNK_BYTES)
        except FileNotFoundError:
            new = b""
        offset += len(new)
        *lines, partial = (partial + new).split(b"\n")
        yield from map(_decode, lines)
        if len(new) == _CHUNK_BYTES:
            continue
        if last:
            break
        if not new:
            time.sleep(_POLL_SECONDS)
    if partial:
        yield _decode(partial)


def read_tail(path: Path, count: int) -> list[str]:
    """Return the last lines that are not empty; the file may be long, or not exist."""
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
