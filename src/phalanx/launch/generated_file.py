"""Files that are written for people to keep, and never over one that they have made their own."""

from __future__ import annotations

from pathlib import Path

from phalanx.errors import JobError


def head(command: str) -> str:
    """The first line of such a file."""
    return (
        f"# Written by `phalanx {command}`, which replaces it. To keep changes, remove this line.\n"
    )


def check_own(path: Path, command: str) -> None:
    """Raise a JobError if the file is there and does not begin as those of this command do."""
    try:
        with path.open() as file:
            first = file.readline()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path} cannot be read: {error}") from None
    if first != head(command):
        raise JobError(f"{path} is there, and was not written by `phalanx {command}`: move it away")


def write_kept(path: Path, text: str, command: str) -> None:
    """Write a file that begins with `head(command)`."""
    check_own(path, command)
    try:
        path.write_text(text)
    except OSError as error:
        raise JobError(f"{path} cannot be written: {error.strerror}") from None
