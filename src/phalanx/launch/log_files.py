"""Reading the output of a task from its log file."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

_POLL_SECONDS = 0.2
_CHUNK_BYTES = 1 << 20
_TAIL_BYTES = 64 << 10


def rotated(path: Path) -> Path:
    """Return the path of the older part of a log that has reached its limit."""
    return path.with_name(path.name + ".1")


def read_log(path: Path, is_over: Callable[[], bool] | None = None) -> Iterator[str]:
    """Yield the lines of a log that may not exist yet; with `is_over`, until that returns true."""
    partial = b""
    with contextlib.ExitStack() as opened:
        file = _open(rotated(path), opened) or _open(path, opened)
        while True:
            # Asked before the read, so that output written just before the end is not missed.
            last = is_over is None or is_over()
            is_complete = file is not None and _is_replaced(file, path)
            new = b"" if file is None else file.read(_CHUNK_BYTES)
            *lines, partial = (partial + new).split(b"\n")
            yield from map(_decode, lines)
            if new:
                continue
            if file is None or is_complete:
                following = _open(path, opened)
                if following is not None:
                    file = following
                    continue
            if last:
                break
            time.sleep(_POLL_SECONDS)
    if partial:
        yield _decode(partial)


def _open(path: Path, opened: contextlib.ExitStack) -> IO[bytes] | None:
    """Open a file in place of the one that was open before; None if it does not exist."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    opened.close()
    opened.enter_context(file)
    return file


def _is_replaced(file: IO[bytes], path: Path) -> bool:
    """Return whether a newer file is at the path, so that nothing more is written to this one."""
    try:
        return not os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def read_tail(path: Path, count: int) -> list[str]:
    """Return the last lines that are not empty; the file may be long, or not exist."""
    lines = b"".join(_read_end(each) for each in (rotated(path), path)).split(b"\n")
    return [_decode(line) for line in lines if line.strip()][-count:]


def _read_end(path: Path) -> bytes:
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - _TAIL_BYTES))
            return log.read()
    except FileNotFoundError:
        return b""


def _decode(line: bytes) -> str:
    return line.decode(errors="replace")
