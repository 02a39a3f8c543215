"""The log file of a task, of limited size: the newest output is kept."""

import contextlib
from pathlib import Path

from phalanx.launch.log_files import rotated
from phalanx.launch.private_files import open_private

DEFAULT_LIMIT = 1 << 30


class RotatingLog:
    """Writes a file and, before it, at most one older file; both together stay below `limit`."""

    def __init__(self, path: Path, limit: int, *, again: bool) -> None:
        """Begin a new log or, with `again`, continue the log of an earlier start."""
        self._path = path
        self._half = max(1, limit // 2)
        if not again:
            rotated(path).unlink(missing_ok=True)
        self._file = open_private(path, "ab" if again else "wb", buffering=0)
        self._size = self._file.tell()

    def write(self, chunk: bytes) -> None:
        """Write without raising: a full disk must not end the job."""
        with contextlib.suppress(OSError):
            if self._size and self._size + len(chunk) > self._half:
                self._rotate()
            self._file.write(chunk)
            self._size += len(chunk)

    def close(self) -> None:
        self._file.close()

    def _rotate(self) -> None:
        self._path.replace(rotated(self._path))
        new = open_private(self._path, "wb", buffering=0)
        self._file.close()
        self._file, self._size = new, 0
