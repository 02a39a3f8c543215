"""Files that only this user may read: plans, job records and logs can hold secrets."""

import contextlib
import os
from pathlib import Path
from typing import IO

_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700


def make_private_directory(path: Path) -> None:
    """Create a directory and its missing parents; those that exist keep their mode."""
    for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
        missing.mkdir(_DIRECTORY_MODE, exist_ok=True)
    if not path.is_dir():
        # The error of the system, as for any other path that cannot be a directory.
        path.mkdir()


def open_private(path: Path, mode: str, buffering: int = -1) -> IO[bytes]:
    """Open a file for writing; a file that exists becomes private as well."""
    file: IO[bytes] = open(path, mode, buffering, opener=_open)  # noqa: SIM115
    with contextlib.suppress(PermissionError):
        os.fchmod(file.fileno(), _FILE_MODE)
    return file


def write_atomically(path: Path, data: bytes) -> None:
    """Write a private file that other processes may be reading."""
    new = path.with_suffix(".new")
    with open_private(new, "wb") as file:
        file.write(data)
    new.replace(path)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags, _FILE_MODE)
