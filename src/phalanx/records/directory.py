"""Directories of files, here and anywhere fsspec reaches: listed, filled and emptied."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from phalanx.errors import DataError
from phalanx.records.index import SUFFIX
from phalanx.records.schema import FILE_NAME
from phalanx.records.storage import (
    UNFINISHED,
    filesystem_of,
    find_hidden,
    find_hidden_over,
    has_directories,
    is_remote,
    look_until_settled,
    writing,
)

_WILD = re.compile(r"[*?\[]")
_TIMES = ("mtime", "modified", "last_modified", "LastModified", "updated")


@dataclass(frozen=True)
class FoundFile:
    """A file that holds records, and the directory or the file it was found by."""

    path: str
    size: int
    modified: float
    root: str

    @property
    def inside(self) -> str:
        """The directories between the root and the file."""
        return self.path.removeprefix(self.root).strip("/").rpartition("/")[0]


def resolve(path: str) -> str:
    """The path as every process understands it: without `file:`, and from the root."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    # Path("/") keeps one slash at the end; others are cut off.
    return path.rstrip("/") if is_remote(path) else os.fspath(Path(path).absolute())


def find_files(paths: Iterable[str]) -> list[FoundFile]:
    """The files of records that paths, globs and directories hold, each of these in order.

    Names that begin with `_` or `.` are hidden: they, and what is in such directories, are passed
    over, as are saved indexes and schemas. So are files whose publication has not ended, unless one
    is named itself. A path that leads nowhere is an error.
    """
    resolved = map(resolve, paths)
    return [file for path in resolved for file in look_until_settled(partial(_find, path))]


def _find(path: str) -> list[FoundFile]:
    filesystem, inside = filesystem_of(path)
    prefix = path.removesuffix(inside)
    roots, is_glob = [inside], False
    if _WILD.search(path) and not filesystem.exists(inside):
        is_glob = True
        roots = sorted(root for root in filesystem.glob(inside) if not _is_hidden(root))
        if not roots:
            raise DataError(f"no file matches {path}")
    files: list[FoundFile] = []
    for root in roots:
        try:
            info = filesystem.info(root)
        except FileNotFoundError:
            raise DataError(f"there is no file or directory {path}") from None
        if info["type"] == "directory":
            files += _walk(filesystem, prefix, root, root)
        else:
            files.append(_found(prefix, info, root))
    is_part = "=" in inside.rpartition("/")[2]
    hidden = find_hidden_over(prefix + root for root in roots) if is_glob or is_part else set()
    return [file for file in files if file.path not in hidden]


def _walk(filesystem: Any, prefix: str, directory: str, root: str) -> list[FoundFile]:
    entries = sorted(filesystem.ls(directory, detail=True), key=lambda entry: entry["name"])
    names = {entry["name"] for entry in entries}
    files: list[FoundFile] = []
    for entry in entries:
        name = entry["name"].rstrip("/")
        if _is_hidden(name) or name == directory:
            continue
        if entry["type"] == "directory":
            files += _walk(filesystem, prefix, name, root)
        elif name.rpartition("/")[2] != FILE_NAME and not (
            name.endswith(SUFFIX) and name.removesuffix(SUFFIX) in names
        ):
            files.append(_found(prefix, entry, root))
    if any(name.rpartition("/")[2].startswith(UNFINISHED) for name in names):
        hidden = find_hidden(prefix + directory)
        return [file for file in files if file.path not in hidden]
    return files


def _found(prefix: str, info: dict[str, Any], root: str) -> FoundFile:
    time = next((info[key] for key in _TIMES if info.get(key) is not None), 0.0)
    if isinstance(time, datetime):
        time = time.timestamp()
    modified = float(time) if isinstance(time, (int, float)) else 0.0
    return FoundFile(prefix + info["name"], int(info["size"]), modified, prefix + root)


def _is_hidden(path: str) -> bool:
    """Hidden to Spark and Hadoop; `_name=value` is a directory of a column."""
    name = path.rstrip("/").rpartition("/")[2]
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def list_all(path: str) -> list[str]:
    """Every file in a directory and below, hidden or not; none if it is not there."""
    filesystem, inside = filesystem_of(path)
    prefix = path.removesuffix(inside)
    return [prefix + name for name in filesystem.find(inside)] if filesystem.exists(inside) else []


def make_directory(path: str) -> None:
    """Make a directory and those above it, if they are not there."""
    filesystem, inside = filesystem_of(path)
    try:
        filesystem.makedirs(inside, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make the directory {path}: {error.strerror or error}") from None


def move_file(source: str, target: str) -> None:
    """Give a file another name on the same file system, in a directory that is made if need be."""
    filesystem, inside = filesystem_of(target)
    filesystem.makedirs(inside.rpartition("/")[0], exist_ok=True)
    filesystem.mv(filesystem_of(source)[1], inside)


def remove(path: str) -> None:
    """Remove a file, or a directory with all that is in it, if it is there."""
    filesystem, inside = filesystem_of(path)
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm(inside, recursive=True)


def remove_if_empty(path: str) -> None:
    """Remove a directory that holds nothing; object stores have none of these."""
    if has_directories(path):
        filesystem, inside = filesystem_of(path)
        with contextlib.suppress(OSError):
            filesystem.rmdir(inside)


def remove_empty_below(path: str) -> None:
    """Remove the directories in this one that hold no file."""
    filesystem, inside = filesystem_of(path)
    prefix = path.removesuffix(inside)
    below = filesystem.walk(inside, topdown=False) if has_directories(path) else []
    for directory, _, _ in below:
        if directory.rstrip("/") != inside:
            remove_if_empty(prefix + directory)


def write_mark(path: str, data: bytes = b"") -> None:
    """Write a small file, whole or not at all."""
    with writing(path) as file:
        file.write(data)


def read_mark(path: str) -> bytes:
    """A small file's data."""
    filesystem, inside = filesystem_of(path)
    return bytes(filesystem.cat_file(inside))
