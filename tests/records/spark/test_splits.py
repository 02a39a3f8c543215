from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.records import RecordIndex, RecordWriter
from phalanx.records.directory import FoundFile, find_files
from phalanx.records.framing import read_chunks
from phalanx.records.spark.splits import OPEN_COST, Split, plan_splits


def write(path: Path, count: int, size: int) -> list[bytes]:
    records = [b"%08d" % number + b"x" * (size - 8) for number in range(count)]
    with RecordWriter(path) as writer:
        writer.write_all(records)
    return records


def plan(path: Path, split_bytes: int) -> list[tuple[Split, ...]]:
    return plan_splits([(file, {}) for file in find_files([str(path)])], split_bytes)


def read(split: Split) -> list[bytes]:
    chunks = read_chunks(split.path, part=split.part)
    return [record for chunk in chunks for record in chunk]


@pytest.mark.parametrize("indexed", [True, False])
def test_a_large_file_is_split_by_record(tmp_path: Path, indexed: bool) -> None:
    records = write(tmp_path / "large", 1200, 5000)
    if indexed:
        RecordIndex.build(str(tmp_path / "large"), stride=7).save()
    tasks = plan(tmp_path, 2_000_000)
    assert len(tasks) > 1
    parts = [read(split) for (split,) in tasks]
    assert all(parts)
    assert [record for part in parts for record in part] == records
    for (split,), part in zip(tasks, parts, strict=True):
        assert split.part is not None
        assert records[split.part.index] == part[0]


@pytest.mark.parametrize("suffix", [".gz", ".zlib"])
def test_a_compressed_file_is_read_whole(tmp_path: Path, suffix: str) -> None:
    records = [str(number).encode() * 3 for number in range(5000)]
    with RecordWriter(tmp_path / f"large{suffix}") as writer:
        writer.write_all(records)
    ((split,),) = plan(tmp_path, 1000)
    assert split.part is None
    assert read(split) == records


def test_a_file_inside_a_record_does_not_mislead(tmp_path: Path) -> None:
    write(tmp_path / "inner", 1000, 100)
    inner = (tmp_path / "inner").read_bytes()
    with RecordWriter(tmp_path / "d" / "outer") as writer:
        writer.write_all([inner] * 40)
    tasks = plan(tmp_path / "d", 500_000)
    assert len(tasks) > 1
    assert [record for (split,) in tasks for record in read(split)] == [inner] * 40


def test_small_files_share_tasks_and_keep_their_order() -> None:
    files = [FoundFile(f"/d/{number:04d}", 1000, 0, "/d") for number in range(5000)]
    tasks = plan_splits([(file, {}) for file in files], 128 << 20)
    assert 64 <= len(tasks) <= 200
    assert [split.path for task in tasks for split in task] == [file.path for file in files]


def test_a_few_files_each_get_a_task() -> None:
    files = [FoundFile(f"/d/{number}", OPEN_COST, 0, "/d") for number in range(4)]
    assert [len(task) for task in plan_splits([(file, {}) for file in files], 128 << 20)] == [1] * 4


def test_no_files_make_no_task_and_an_empty_file_makes_one() -> None:
    assert plan_splits([], 1000) == []
    ((split,),) = plan_splits([(FoundFile("/d/empty", 0, 0, "/d"), {})], 1000)
    assert split.path == "/d/empty"
