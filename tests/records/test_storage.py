from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.errors import DataError
from phalanx.records import RecordWriter, read_records
from phalanx.records.storage import (
    exists,
    move_file,
    read_bytes,
    remove,
    remove_empty_below,
    resolve,
    write_bytes,
)
from phalanx.records.storage.listing import find_files, list_all


def test_resolve_makes_paths_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("a/b/") == f"{tmp_path}/a/b"
    assert resolve("file:///a/b") == resolve("file:/a/b") == "/a/b"
    assert resolve("gs://bucket/a/") == "gs://bucket/a"


def test_remote_files_are_found_moved_and_removed(tmp_path: Path) -> None:
    write_bytes("memory://phalanx-directory/k=1/_x", b"1")
    write_bytes("memory://phalanx-directory/k=1/x", b"12")
    (found,) = find_files(["memory://phalanx-directory"])
    assert (found.size, found.subdirectory) == (2, "k=1")
    move_file(found.path, "memory://phalanx-directory/y")
    assert sorted(path.rpartition("/")[2] for path in list_all("memory://phalanx-directory")) == [
        "_x",
        "y",
    ]
    assert read_bytes("memory://phalanx-directory/y") == b"12"
    remove("memory://phalanx-directory")
    assert not exists("memory://phalanx-directory/y")


def test_remove_empty_below_keeps_directories_with_files(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").touch()
    (tmp_path / "c/d").mkdir(parents=True)
    remove_empty_below(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a/b/file").exists()


def test_memory_urls_work_like_paths() -> None:
    with RecordWriter("memory://bucket/folder/a.tfrecord") as writer:
        writer.write(b"one")
    with RecordWriter("memory://bucket/folder/a.tfrecord", append=True) as writer:
        writer.write(b"two")
    assert list(read_records("memory://bucket/folder/*.tfrecord")) == [b"one", b"two"]
    with pytest.raises(DataError, match="is a directory"):
        list(read_records("memory://bucket/folder"))
    with pytest.raises(DataError, match="no file matches"):
        list(read_records("memory://bucket/other/*"))
