"""Files by path: local by default, on any fsspec file system for a path with a scheme."""

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from phalanx.errors import DataError
from phalanx.records.types import FileSystem

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HADOOP = ("hdfs", "viewfs")


def is_remote(path: str) -> bool:
    """Is it a path with a scheme, as in gs://bucket/file?"""
    return _SCHEME.match(path) is not None


def has_directories(path: str) -> bool:
    """Does its file system have directories? Object stores only have names with slashes."""
    return not is_remote(path) or _scheme(path) in _HADOOP


def _scheme(path: str) -> str:
    return path.partition("://")[0].lower()


def resolve(path: str) -> str:
    """The absolute path, without `file:`, so that it means the same in every process."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    # Path("/") keeps its slash; others are cut off.
    return path.rstrip("/") if is_remote(path) else os.fspath(Path(path).absolute())


def filesystem_of(path: str) -> tuple[FileSystem, str]:
    """The fsspec file system of a path, and the path inside that file system."""
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415
    except ImportError:
        raise DataError(f"{path} needs fsspec: pip install 'phalanx[records]'") from None
    try:
        if _scheme(path) in _HADOOP:
            return _hadoop_filesystem(path)
        return cast(tuple[FileSystem, str], url_to_fs(path))
    except (ImportError, ValueError, RuntimeError) as error:
        raise DataError(f"cannot open {path}: {error}") from None


def _hadoop_filesystem(path: str) -> tuple[FileSystem, str]:
    """Our own file system, because fsspec's needs Java."""
    try:
        from phalanx.records.storage.hdfs import connect  # noqa: PLC0415
    except ModuleNotFoundError:
        raise DataError(
            f"{path} needs an HDFS client, which is not installed: pip install 'phalanx[hdfs]'"
        ) from None
    return connect(_scheme(path), path)


def directory_error(path: str) -> DataError:
    return DataError(f"{path} is a directory: name its files, as in {path.rstrip('/')}/*.tfrecord")


def open_input(path: str) -> BinaryIO:
    """Open a file for unbuffered reading."""
    if is_remote(path):
        filesystem, inside = filesystem_of(path)
        try:
            return cast(BinaryIO, filesystem.open(inside, "rb"))
        except FileNotFoundError:
            raise DataError(f"there is no file {path}") from None
        except OSError as error:
            # Some servers send a stack trace after the first line.
            reason = (error.strerror or str(error)).strip().partition("\n")[0]
            raise DataError(f"cannot read {path}: {reason}") from None
    try:
        return cast(BinaryIO, Path(path).open("rb", buffering=0))
    except IsADirectoryError:
        raise directory_error(path) from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def exists(path: str) -> bool:
    if is_remote(path):
        filesystem, inside = filesystem_of(path)
        return bool(filesystem.exists(inside))
    return Path(path).exists()


def file_size(path: str) -> int:
    if is_remote(path):
        filesystem, inside = filesystem_of(path)
        return int(filesystem.size(inside))
    try:
        return Path(path).stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None


def read_range(path: str, start: int, stop: int) -> bytes:
    """The bytes from `start` up to `stop`; fewer if the file is shorter."""
    if is_remote(path):
        filesystem, inside = filesystem_of(path)
        return cast(bytes, filesystem.cat_file(inside, start=start, end=stop))
    with open_input(path) as file:
        return os.pread(file.fileno(), stop - start, start)


@dataclass
class AtomicFile:
    """A file that is written under a temporary name and renamed by `commit`.

    Until then, and after `discard`, an older file of the same name is unchanged.
    """

    path: str
    file: BinaryIO
    partial: str

    def commit(self) -> None:
        if is_remote(self.path):
            self.file.close()
            filesystem, inside = filesystem_of(self.path)
            filesystem.mv(filesystem_of(self.partial)[1], inside)
            return
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        Path(self.partial).replace(self.path)

    def discard(self) -> None:
        self.file.close()
        if is_remote(self.path):
            filesystem, inside = filesystem_of(self.partial)
            if filesystem.exists(inside):
                filesystem.rm(inside)
        else:
            Path(self.partial).unlink(missing_ok=True)


def open_atomic(path: str, *, make_directory: bool = True) -> AtomicFile:
    """Open a file for atomic writing, in a directory that is created if it does not exist.

    Without `make_directory`, a directory that does not exist is an error.
    """
    parent, _, name = path.rpartition("/")
    partial = f"{parent}/" * bool(parent or path.startswith("/"))
    partial += f".{name}.{secrets.token_hex(4)}.partial"
    if is_remote(path):
        filesystem, inside = filesystem_of(partial)
        if make_directory:
            filesystem.makedirs(inside.rpartition("/")[0], exist_ok=True)
        # A name node would create the directory by itself.
        options = {"create_parent": make_directory} if has_directories(path) else {}
        return AtomicFile(path, filesystem.open(inside, "wb", **options), partial)
    if Path(path).is_dir():
        raise directory_error(path)
    try:
        if make_directory:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        return AtomicFile(path, Path(partial).open("wb"), partial)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None


@contextlib.contextmanager
def writing(path: str) -> Iterator[BinaryIO]:
    """Write a file atomically: it is complete after the block, or unchanged after an error."""
    output = open_atomic(path)
    try:
        yield output.file
        output.commit()
    except BaseException:
        output.discard()
        raise


def write_bytes(path: str, data: bytes = b"") -> None:
    """Write a small file atomically."""
    with writing(path) as file:
        file.write(data)


def read_bytes(path: str) -> bytes:
    filesystem, inside = filesystem_of(path)
    return bytes(filesystem.cat_file(inside))


def make_directory(path: str) -> None:
    filesystem, inside = filesystem_of(path)
    try:
        filesystem.makedirs(inside, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the directory {path}: {error.strerror or error}") from None


def make_directories_below(root: str, path: str) -> None:
    """Create the directories between `root`, which must exist, and `path`, and `path` itself."""
    if not has_directories(path):
        return
    filesystem, inside = filesystem_of(root)
    for name in path.removeprefix(root).strip("/").split("/"):
        inside = f"{inside}/{name}"
        try:
            filesystem.mkdir(inside, create_parents=False)
        except FileExistsError:
            continue
        except OSError as error:
            # Some servers send a stack trace after the first line.
            reason = (error.strerror or str(error)).partition("\n")[0]
            raise DataError(f"cannot make the directory {path}: {reason}") from None


def move_file(source: str, target: str) -> None:
    """Rename a file on the same file system, to a directory that is created if necessary."""
    filesystem, inside = filesystem_of(target)
    filesystem.makedirs(inside.rpartition("/")[0], exist_ok=True)
    filesystem.mv(filesystem_of(source)[1], inside)


def remove(path: str) -> None:
    """Remove a file, or a directory with its content, if it exists."""
    filesystem, inside = filesystem_of(path)
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(inside, recursive=True)


def remove_shared_directory(path: str) -> None:
    """Remove a directory, if it exists, in which other processes may create files meanwhile.

    It is renamed first: a file that is created during the removal would make that fail.
    """
    if not has_directories(path):
        remove(path)
    elif exists(path):
        filesystem, inside = filesystem_of(path)
        filesystem.mv(inside, f"{inside}-ended")
        remove(f"{path}-ended")


def remove_if_empty(path: str) -> None:
    """Remove a directory if it is empty; object stores have no directories."""
    if has_directories(path):
        filesystem, inside = filesystem_of(path)
        with contextlib.suppress(OSError):
            filesystem.rmdir(inside)


def remove_empty_below(path: str) -> None:
    filesystem, inside = filesystem_of(path)
    prefix = path.removesuffix(inside)
    below = filesystem.walk(inside, topdown=False) if has_directories(path) else []
    for directory, _, _ in below:
        if directory.rstrip("/") != inside:
            remove_if_empty(prefix + directory)
