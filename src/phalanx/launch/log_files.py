"""Reading the output of a task from the file it is written to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

_POLL_SECONDS = 0.2


def read_log(path: Path, is_over: Callable[[], bool] | None = None) -> Iterator[str]:
    """The lines of a file that may not be there yet; given `is_over`, goes on until that is true.

    A last line without an end is given once nothing more can come.
    """
    place, partial = 0, ""
    while True:
        # Asked before reading, so that what was written just before the end is not missed.
        last = is_over is None or is_over()
        try:
            with path.open("rb") as log:
                log.seek(place)
                new = log.read()
        except FileNotFoundError:
            new = b""
        place += len(new)
        *lines, partial = (partial + new.decode(errors="replace")).split("\n")
        yield from lines
        if last:
            break
        if not new:
            time.sleep(_POLL_SECONDS)
    if partial:
        yield partial
