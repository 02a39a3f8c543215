"""Files that only this user may read: plans, job records and logs can hold secrets."""

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import IO, Literal

_ROOT = 0
_FILE_MODE = 0o600
_DIRECTORY_MODE = 0o700


def make_private_directory(path: Path) -> None:
    """Create a directory and its missing parents; those that exist keep their mode."""
    for missing in reversed([each for each in (path, *path.parents) if not each.exists()]):
        missing.mkdir(_DIRECTORY_MODE, exist_ok=True)
    if not path.is_dir():
        # The error of the system, as for any other path that cannot be a directory.
        path.mkdir()


def open_private(path: Path, mode: Literal["wb", "ab"], buffering: int = -1) -> IO[bytes]:
    """Open a file for writing that only this user can read.

    `wb` replaces what is there. `ab` continues a file, and raises PermissionError if it belongs to
    another user: others may have put it, or a link to a file of this user, into a shared directory.
    """
    if mode == "wb":
        path.unlink(missing_ok=True)
    file: IO[bytes] = open(path, mode, buffering, opener=_OPENERS[mode])  # noqa: SIM115
    owner = os.fstat(file.fileno()).st_uid
    if mode == "ab" and owner not in (os.geteuid(), _ROOT):
        file.close()
        raise PermissionError(errno.EPERM, f"{path} belongs to another user")
    # Some file systems have no modes.
    with contextlib.suppress(PermissionError):
        os.fchmod(file.fileno(), _FILE_MODE)
    return file


def write_atomically(path: Path, data: bytes) -> None:
    """Write a private file that other processes may be reading."""
    new = path.with_suffix(".new")
    with open_private(new, "wb") as file:
        file.write(data)
    new.replace(path)


def read_private(path: Path) -> bytes:
    """Read a file that this user has written.

    Others may have put another file, a link or a pipe into a shared directory: PermissionError.
    """
    with open(path, "rb", opener=_open_to_read) as file:
        found = os.fstat(file.fileno())
        if found.st_uid not in (os.geteuid(), _ROOT) or not stat.S_ISREG(found.st_mode):
            raise PermissionError(errno.EPERM, f"{path} belongs to another user, or is no file")
        return file.read()


def _open_to_read(path: str, flags: int) -> int:
    # To open a pipe would wait for its writer.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


_OPENERS = {
    "wb": lambda path, flags: os.open(path, flags | os.O_NOFOLLOW | os.O_EXCL, _FILE_MODE),
    "ab": lambda path, flags: os.open(path, flags | os.O_NOFOLLOW, _FILE_MODE),
}
