"""Which files a path, a glob or a directory stands for."""

import contextlib
import glob
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from phalanx.errors import DataError
from phalanx.records.storage import directory_error, filesystem_of, is_remote, resolve
from phalanx.records.types import FileSystem, Paths

INDEX_SUFFIX = ".index"
SCHEMA_FILE = "schema.json"
COMMIT_PREFIX = "_commit-"
"""A file `_commit-ID` lists files of its directory that readers must ignore; see `find_hidden`."""

_WILD = re.compile(r"[*?\[]")
_BRACES = re.compile(r"\{([^{}]*)\}")
_TIMES = ("mtime", "modified", "last_modified", "LastModified", "updated")
_TRIES = 3
_Found = TypeVar("_Found")


class _NoMatchError(DataError):
    pass


def expand(patterns: Paths) -> list[str]:
    """List the files that paths and globs name.

    A glob does not match files of a Spark write that has not been committed.

    Args:
        patterns: One or more paths or globs, local or with a scheme such as `gs://`.

    Returns:
        The paths, sorted within each glob.

    Raises:
        DataError: A pattern matches no file, or is a directory.
    """
    if isinstance(patterns, (str, os.PathLike)):
        patterns = [patterns]
    files: list[str] = []
    for pattern in (os.fspath(each) for each in patterns):
        found = _retry(_match, pattern)
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
            raise directory_error(pattern)
        # fsspec cuts off a prefix such as hdfs://host:8020, which belongs to each name.
        prefix = pattern.removesuffix(inside)
        found = [prefix + name for name in sorted(filesystem.glob(inside))]
    elif Path(pattern).is_dir():
        raise directory_error(pattern)
    elif Path(pattern).exists():
        found = [pattern]
    else:
        found = sorted(name for name in glob.glob(pattern, recursive=True)  # noqa: PTH207
                       if not Path(name).is_dir())  # fmt: skip
    if found == [pattern]:
        return found
    hidden = _find_hidden_around(found)
    return [path for path in found if path not in hidden]


def find_hidden(directory: str) -> set[str]:
    """The files in and below a directory that a commit in progress hides from readers.

    A writer that publishes many files together keeps this list, in a file `_commit-ID`, until all
    are in place. A list that disappears meanwhile raises FileNotFoundError.
    """
    if is_remote(directory):
        filesystem, inside = filesystem_of(directory)
        paths = filesystem.glob(f"{inside}/{COMMIT_PREFIX}*")
        lists = [filesystem.cat_file(path) for path in paths]
    else:
        lists = [path.read_bytes() for path in Path(directory).glob(f"{COMMIT_PREFIX}*")]
    prefix = f"{directory}/" if directory else ""
    return {prefix + name for names in lists for name in json.loads(names)}


def _find_hidden_around(paths: Iterable[str]) -> set[str]:
    """The hidden files in the directories of `paths`, or in their parents for one like `day=1`."""
    directories: set[str] = set()
    for path in paths:
        directory = path.rpartition("/")[0]
        directories.add(directory)
        while "=" in directory.rpartition("/")[2]:
            directory = directory.rpartition("/")[0]
            directories.add(directory)
    return {path for directory in directories for path in find_hidden(directory)}


def _retry(list_files: Callable[[str], _Found], path: str) -> _Found:
    """List files again if a commit ended during the first try."""
    for _ in range(_TRIES - 1):
        with contextlib.suppress(FileNotFoundError):
            return list_files(path)
    return list_files(path)


@dataclass(frozen=True)
class FoundFile:
    """A file of records, and the directory or file `root` through which it was found."""

    path: str
    size: int
    modified: float
    root: str

    @property
    def subdirectory(self) -> str:
        """The directories between the root and the file."""
        return self.path.removeprefix(self.root).strip("/").rpartition("/")[0]


def find_files(paths: Iterable[str]) -> list[FoundFile]:
    """The files of records that paths, globs and directories hold, sorted within each.

    Names that begin with `_` or `.` are skipped, and so are saved indexes and schemas. Files of a
    commit in progress are skipped unless they are named themselves. `{a,b}` stands for a or b.
    """
    return [file for path in map(resolve, paths) for file in _retry(_find_alternatives, path)]


def _find_alternatives(path: str) -> list[FoundFile]:
    alternatives = _expand_braces(path)
    if len(alternatives) == 1:
        return _find(path)
    files: list[FoundFile] = []
    for each in alternatives:
        with contextlib.suppress(_NoMatchError):
            files += _find(each)
    if not files:
        raise _NoMatchError(f"no file matches {path}")
    return files


def _expand_braces(path: str) -> list[str]:
    """The alternatives of a glob such as `day={1,2}`, unless a file has that name."""
    found = _BRACES.search(path)
    if not found or (not is_remote(path) and Path(path).exists()):
        return [path]
    before, after = path[: found.start()], path[found.end() :]
    return [
        each
        for choice in found[1].split(",")
        for each in _expand_braces(f"{before}{choice}{after}")
    ]


def _find(path: str) -> list[FoundFile]:
    filesystem, inside = filesystem_of(path)
    prefix = path.removesuffix(inside)
    roots, is_glob = [inside], False
    if _WILD.search(path) and not filesystem.exists(inside):
        is_glob = True
        roots = sorted(root for root in filesystem.glob(inside) if not _is_hidden(root))
        if not roots:
            raise _NoMatchError(f"no file matches {path}")
    files: list[FoundFile] = []
    for root in roots:
        try:
            info = filesystem.info(root)
        except FileNotFoundError:
            raise _NoMatchError(f"there is no file or directory {path}") from None
        if info["type"] == "directory":
            files += _walk(filesystem, prefix, root, root)
        else:
            files.append(_found(prefix, info, root))
    is_partition = "=" in inside.rpartition("/")[2]
    if is_glob or is_partition:
        hidden = _find_hidden_around(prefix + root for root in roots)
        files = [file for file in files if file.path not in hidden]
    return files


def _walk(filesystem: FileSystem, prefix: str, directory: str, root: str) -> list[FoundFile]:
    entries = sorted(filesystem.ls(directory, detail=True), key=lambda entry: entry["name"])
    names = {entry["name"] for entry in entries}
    files: list[FoundFile] = []
    for entry in entries:
        name = entry["name"].rstrip("/")
        if _is_hidden(name) or name == directory:
            continue
        if entry["type"] == "directory":
            files += _walk(filesystem, prefix, name, root)
        elif name.rpartition("/")[2] != SCHEMA_FILE and not (
            name.endswith(INDEX_SUFFIX) and name.removesuffix(INDEX_SUFFIX) in names
        ):
            files.append(_found(prefix, entry, root))
    if any(name.rpartition("/")[2].startswith(COMMIT_PREFIX) for name in names):
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
    """Is the name hidden to Spark and Hadoop? `_name=value` is the directory of a column."""
    name = path.rstrip("/").rpartition("/")[2]
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def list_all(path: str) -> list[str]:
    """Every file in and below a directory, hidden or not; none if it does not exist."""
    filesystem, inside = filesystem_of(path)
    prefix = path.removesuffix(inside)
    return [prefix + name for name in filesystem.find(inside)] if filesystem.exists(inside) else []
