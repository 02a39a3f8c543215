"""Files that a command generates and replaces, unless the user has removed their first line."""

from pathlib import Path

from phalanx.errors import JobError
from phalanx.launch.private_files import open_private


def header(command: str) -> str:
    """Return the first line of a file that this command generates."""
    return (
        f"# Written by `phalanx {command}`, which replaces it. To keep changes, remove this line.\n"
    )


def check_generated(path: Path, command: str) -> None:
    try:
        with path.open() as file:
            first = file.readline()
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path} cannot be read: {error}") from None
    if first != header(command):
        raise JobError(f"{path} is there, and was not written by `phalanx {command}`: move it away")


def write_generated(path: Path, text: str, command: str, private: bool = False) -> None:
    """Write a file that begins with `header(command)`, unless another file is in its place."""
    check_generated(path, command)
    try:
        if private:
            with open_private(path, "wb") as file:
                file.write(text.encode())
        else:
            path.write_text(text)
    except OSError as error:
        raise JobError(f"{path} cannot be written: {error.strerror}") from None
