"""Takes the lines with the progress of a run out of the output of a task on another host."""

import contextlib
from pathlib import Path

from phalanx.cluster.progress import PROGRESS_MARK, parse_progress

_LONGEST_LINE = 1 << 18


class ProgressLines:
    """Writes the progress to a file, and leaves the rest of the output as it is.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held = b""

    def take(self, chunk: bytes) -> bytes:
        """Return the output without such lines. The beginning of one is kept for the next call."""
        output, rest = b"", self._held + chunk
        while True:
            before, mark, after = rest.partition(PROGRESS_MARK)
            line, newline, after = after.partition(b"\n")
            if not newline:
                break
            self._write(line)
            output, rest = output + before, after
        start = len(before) if mark else _find_beginning(rest)
        self._held = rest[start:]
        if len(self._held) > _LONGEST_LINE:
            start, self._held = len(rest), b""
        return output + rest[:start]

    def take_rest(self) -> bytes:
        """Return what was kept."""
        rest, self._held = self._held, b""
        return rest

    def _write(self, line: bytes) -> None:
        if (progress := parse_progress(line)) is not None:
            with contextlib.suppress(OSError):
                progress.write(self._path)


def _find_beginning(text: bytes) -> int:
    """Return where the beginning of a mark is at the end of a text; the end if there is none."""
    start = text.rfind(PROGRESS_MARK[:1])
    return start if start >= 0 and PROGRESS_MARK.startswith(text[start:]) else len(text)
