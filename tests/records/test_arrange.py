from __future__ import annotations

import resource
from pathlib import Path

import pytest

from phalanx.errors import DataError
from phalanx.records import RecordWriter, read_records
from phalanx.records.arrange import merge, shuffle, split, split_by_shares

RECORDS = [b"%06d" % number for number in range(5000)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    with RecordWriter(tmp_path / "in.tfrecord") as writer:
        writer.write_all(RECORDS)
    return str(tmp_path / "in.tfrecord")


def test_split_and_merge_lose_nothing(tmp_path: Path, path: str) -> None:
    written = split(path, str(tmp_path / "part.tfrecord"), 7)
    assert [count for _, count in written] == [715, 715, 714, 714, 714, 714, 714]
    assert merge(tmp_path / "part-*", str(tmp_path / "all.tfrecord")) == 5000
    assert sorted(read_records(tmp_path / "all.tfrecord")) == RECORDS


def test_shares_are_exact(tmp_path: Path, path: str) -> None:
    shares = {str(tmp_path / "a"): 0.7, str(tmp_path / "b"): 0.2, str(tmp_path / "c"): 0.1}
    assert [count for _, count in split_by_shares(path, shares)] == [3500, 1000, 500]
    assert list(read_records(list(shares))) == RECORDS


@pytest.mark.parametrize("share", [0, -1, float("nan"), float("inf")])
def test_a_share_is_a_number_greater_than_0(tmp_path: Path, path: str, share: float) -> None:
    with pytest.raises(DataError, match="must be a number greater than 0"):
        split_by_shares(path, {str(tmp_path / "a"): 1, str(tmp_path / "b"): share})


@pytest.mark.parametrize("memory", [1 << 30, 20_000])
def test_a_shuffle_keeps_every_record(tmp_path: Path, path: str, memory: int) -> None:
    outs = []
    for name in ("a", "b"):
        assert shuffle(path, str(tmp_path / name), seed=4, memory=memory) == 5000
        outs.append(list(read_records(tmp_path / name)))
    assert outs[0] == outs[1] != RECORDS
    assert sorted(outs[0]) == RECORDS
    # Neighbours are torn apart: few are still side by side.
    near = sum(abs(int(x) - int(y)) == 1 for x, y in zip(outs[0], outs[0][1:], strict=False))
    assert near < 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "in.tfrecord"]


def test_more_files_than_a_process_may_have_open_are_no_matter(tmp_path: Path, path: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
        assert len(split(path, str(tmp_path / "part.tfrecord"), 80)) == 80
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
        # Memory for so little that there are 89 heaps.
        assert shuffle(path, str(tmp_path / "all"), memory=2500) == 5000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert sorted(read_records(tmp_path / "all")) == RECORDS


def test_a_file_is_never_read_and_written_at_once(tmp_path: Path, path: str) -> None:
    with pytest.raises(DataError, match="would be read and written"):
        merge([path], path)
    assert list(read_records(path)) == RECORDS
