"""Where files are: on this machine by default, anywhere fsspec reaches for a path with a scheme."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from phalanx.errors import DataError

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_WILD = re.compile(r"[*?\[]")
_HADOOP = ("hdfs", "viewfs")
_TRIES = 3
_Found = TypeVar("_Found")

UNFINISHED = "_commit-"
"""How the names of those files begin that list what in their directory does not count."""


def is_remote(path: str) -> bool:
    """Is it a path with a scheme, as in gs://bucket/file?"""
    return _SCHEME.match(path) is not None


def has_directories(path: str) -> bool:
    """Are there directories where it is? Object stores only have names with slashes."""
    return not is_remote(path) or _scheme(path) in _HADOOP


def _scheme(path: str) -> str:
    return path.partition("://")[0].lower()


def filesystem_of(path: str) -> tuple[Any, str]:
    """The fsspec file system of a path, and the path in it."""
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415
    except ImportError:
        raise DataError(f"{path} needs fsspec: pip install 'phalanx[records]'") from None
    try:
        if _scheme(path) in _HADOOP:
            return _hadoop_filesystem(path)
        return cast(tuple[Any, str], url_to_fs(path))
    except (ImportError, ValueError, RuntimeError) as error:
        raise DataError(f"cannot open {path}: {error}") from None


def _hadoop_filesystem(path: str) -> tuple[Any, str]:
    """Ours, since fsspec's own needs Java."""
    try:
        from phalanx.records.hdfs import connect  # noqa: PLC0415
    except ModuleNotFoundError:
        raise DataError(
            f"{path} needs a client for HDFS, which is not installed: pip install 'phalanx[hdfs]'"
        ) from None
    return connect(_scheme(path), path)


def expand(patterns: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[str]:
    """The files that paths and globs name, each glob's in order.

    A pattern that matches nothing, or a directory, is an error: an empty data set is never meant.
    A glob does not match files whose publication has not ended; see `find_hidden`.
    """
    if isinstance(patterns, (str, os.PathLike)):
        patterns = [patterns]
    files: list[str] = []
    for pattern in (os.fspath(each) for each in patterns):
        found = look_until_settled(partial(_match, pattern))
        if not found:
            what = "no file matches" if _WILD.search(pattern) else "there is no file"
            raise DataError(f"{what} {pattern}")
        files += found
    if not files:
        raise DataError("no files were given")
    return files


def _match(pattern: str) -> list[str]:
    if is_remote(pattern):
        filesystem, inside = filesystem_of(pattern)
        if filesystem.isdir(inside):
            raise _directory(pattern)
        # What the file system cut off in front, such as hdfs://host:8020, belongs to each name.
        prefix = pattern.removesuffix(inside)
        found = [prefix + name for name in sorted(filesystem.glob(inside))]
    elif Path(pattern).is_dir():
        raise _directory(pattern)
    elif Path(pattern).exists():
        found = [pattern]
    else:
        found = sorted(name for name in glob.glob(pattern, recursive=True)  # noqa: PTH207
                       if not Path(name).is_dir())  # fmt: skip
    if found == [pattern]:
        return found
    hidden = find_hidden_over(found)
    return [path for path in found if path not in hidden]


def find_hidden_over(paths: Iterable[str]) -> set[str]:
    """What does not count among files, by the lists in their directories.

    A directory of a partition, such as `day=1`, belongs to the one above it.
    """
    directories: set[str] = set()
    for path in paths:
        directory = path.rpartition("/")[0]
        directories.add(directory)
        while "=" in directory.rpartition("/")[2]:
            directory = directory.rpartition("/")[0]
            directories.add(directory)
    return {path for directory in directories for path in find_hidden(directory)}


def find_hidden(directory: str) -> set[str]:
    """The files in a directory and below that do not count: not yet, or not any more.

    Whoever publishes many files together keeps such a list, in a file `_commit-…` of the directory,
    until all are in their places. One that goes while it is looked for is a FileNotFoundError.
    """
    if is_remote(directory):
        filesystem, inside = filesystem_of(directory)
        lists = [filesystem.cat_file(path) for path in filesystem.glob(f"{inside}/{UNFINISHED}*")]
    else:
        lists = [path.read_bytes() for path in Path(directory).glob(f"{UNFINISHED}*")]
    prefix = f"{directory}/" if directory else ""
    return {prefix + name for names in lists for name in json.loads(names)}


def look_until_settled(look: Callable[[], _Found]) -> _Found:
    """What there is in directories, looked for again if a publication has just ended."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(FileNotFoundError):
            return look()
    return look()


def _directory(path: str) -> DataError:
    return DataError(f"{path} is a directory: name its files, as in {path.rstrip('/')}/*.tfrecord")


def open_input(path: str) -> BinaryIO:
    """The file, for reading, unbuffered."""
    if is_remote(path):
        filesystem, inside = filesystem_of(path)
        try:
            return cast(BinaryIO, filesystem.open(inside, "rb"))
        except FileNotFoundError:
            raise DataError(f"there is no file {path}") from None
        except OSError as error:
            # A server may send its own trace along.
            reason = (error.strerror or str(error)).strip().partition("\n")[0]
            raise DataError(f"cannot read {path}: {reason}") from None
    try:
        return cast(BinaryIO, Path(path).open("rb", buffering=0))
    except IsADirectoryError:
        raise _directory(path) from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def exists(path: str) -> bool:
    """Is there such a file or directory?"""
    if is_remote(path):
        filesystem, inside = filesystem_of(path)
        return bool(filesystem.exists(inside))
    return Path(path).exists()


def file_size(path: str) -> int:
    """The size of the file in bytes."""
    if is_remote(path):
        filesystem, inside = filesystem_of(path)
        return int(filesystem.size(inside))
    try:
        return Path(path).stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def read_range(path: str, start: int, stop: int) -> bytes:
    """The bytes from `start` up to `stop`; fewer if the file ends before."""
    if is_remote(path):
        filesystem, inside = filesystem_of(path)
        return cast(bytes, filesystem.cat_file(inside, start=start, end=stop))
    with open_input(path) as file:
        return os.pread(file.fileno(), stop - start, start)


@dataclass
class Output:
    """A file that gets its name only when it is whole.

    It is written under a hidden name beside it. `commit` gives it its own; until then, and after
    `discard`, what had that name before is untouched.
    """

    path: str
    file: BinaryIO
    hidden: str

    def commit(self) -> None:
        """Close the file and give it its name."""
        if is_remote(self.path):
            self.file.close()
            filesystem, inside = filesystem_of(self.path)
            filesystem.mv(filesystem_of(self.hidden)[1], inside)
            return
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        Path(self.hidden).replace(self.path)

    def discard(self) -> None:
        """Close the file and remove it."""
        self.file.close()
        if is_remote(self.path):
            filesystem, inside = filesystem_of(self.hidden)
            if filesystem.exists(inside):
                filesystem.rm(inside)
        else:
            Path(self.hidden).unlink(missing_ok=True)


@contextlib.contextmanager
def writing(path: str) -> Iterator[BinaryIO]:
    """A file that is whole at the end of the block, or not there."""
    output = open_output(path)
    try:
        yield output.file
        output.commit()
    except BaseException:
        output.discard()
        raise


def open_output(path: str) -> Output:
    """Begin to write a file; its directory is made if it is not there."""
    parent, _, name = path.rpartition("/")
    hidden = f"{parent}/" * bool(parent or path.startswith("/"))
    hidden += f".{name}.{secrets.token_hex(4)}.partial"
    if is_remote(path):
        filesystem, inside = filesystem_of(hidden)
        filesystem.makedirs(inside.rpartition("/")[0], exist_ok=True)
        return Output(path, filesystem.open(inside, "wb"), hidden)
    if Path(path).is_dir():
        raise _directory(path)
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        return Output(path, Path(hidden).open("wb"), hidden)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None
