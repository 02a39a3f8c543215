import random
import resource
from pathlib import Path

import pytest

from phalanx.errors import DataError
from phalanx.records import RecordWriter, read_records, repair, verify, verify_all
from phalanx.records.file_operations import merge, shuffle, split, split_by_shares

SIZE = 400
COUNT = 200


@pytest.fixture
def records() -> list[bytes]:
    source = random.Random(5)
    return [source.randbytes(SIZE) for _ in range(COUNT)]


@pytest.fixture
def sound(tmp_path: Path, records: list[bytes]) -> bytes:
    with RecordWriter(tmp_path / "sound") as writer:
        writer.write_all(records)
    return (tmp_path / "sound").read_bytes()


def damage(data: bytes, how: str, source: random.Random) -> bytes:
    place = source.randrange(len(data) - SIZE)
    if how == "flip":
        return data[:place] + bytes([data[place] ^ 1 << source.randrange(8)]) + data[place + 1 :]
    if how == "remove":
        return data[:place] + data[place + source.randrange(1, SIZE) :]
    if how == "insert":
        return data[:place] + source.randbytes(source.randrange(1, SIZE)) + data[place:]
    return data[:place] + bytes(SIZE) + data[place + SIZE :]


@pytest.mark.parametrize("how", ["flip", "remove", "insert", "zeros"])
@pytest.mark.parametrize("seed", range(8))
def test_repair_drops_only_damaged_records(
    tmp_path: Path, records: list[bytes], sound: bytes, how: str, seed: int
) -> None:
    damaged = damage(sound, how, random.Random(seed))
    (tmp_path / "damaged").write_bytes(damaged)
    report = repair(str(tmp_path / "damaged"), str(tmp_path / "repaired"))
    saved = list(read_records(tmp_path / "repaired"))
    # The damaged range touches at most two records, as it is no longer than one.
    assert len(saved) >= COUNT - 2
    remaining = iter(records)
    assert all(record in remaining for record in saved)
    assert report.records == len(saved)
    lost = sum(part.size for part in report.damage)
    assert lost + sum(len(record) + 16 for record in saved) == len(damaged)
    assert verify(str(tmp_path / "repaired")).is_sound


def test_report_names_each_damaged_record(tmp_path: Path, sound: bytes) -> None:
    frame = SIZE + 16
    damaged = bytearray(sound)
    for number in (3, 70, 71):
        damaged[number * frame + 100] ^= 4
    (tmp_path / "damaged").write_bytes(damaged)
    report = verify(str(tmp_path / "damaged"))
    assert [(part.index, part.offset) for part in report.damage] == [
        (3, 3 * frame),
        (70, 70 * frame),
        (71, 71 * frame),
    ]
    assert report.records == COUNT - 3


def test_repair_drops_a_truncated_record(
    tmp_path: Path, records: list[bytes], sound: bytes
) -> None:
    (tmp_path / "damaged").write_bytes(sound[:-7])
    report = repair(str(tmp_path / "damaged"), str(tmp_path / "repaired"))
    assert list(read_records(tmp_path / "repaired")) == records[:-1]
    assert [part.size for part in report.damage] == [SIZE + 16 - 7]


def test_file_without_records_is_all_damage(tmp_path: Path) -> None:
    (tmp_path / "damaged").write_bytes(random.Random(1).randbytes(1_500_000))
    report = verify(str(tmp_path / "damaged"))
    assert report.records == 0
    assert [part.size for part in report.damage] == [1_500_000]


def test_repair_rejects_its_input_as_output(tmp_path: Path, sound: bytes) -> None:
    with pytest.raises(DataError, match="another name"):
        repair(str(tmp_path / "sound"), str(tmp_path / "sound"))
    assert (tmp_path / "sound").read_bytes() == sound


def test_verify_all_reports_every_file(tmp_path: Path, sound: bytes) -> None:
    (tmp_path / "damaged").write_bytes(sound[:-1])
    done: list[int] = []
    reports = verify_all(
        [str(tmp_path / "sound"), str(tmp_path / "damaged")], threads=2, progress=done.append
    )
    assert [report.is_sound for report in reports] == [True, False]
    assert sum(done) == 2 * len(sound) - 1


RECORDS = [b"%06d" % number for number in range(5000)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    with RecordWriter(tmp_path / "in.tfrecord") as writer:
        writer.write_all(RECORDS)
    return str(tmp_path / "in.tfrecord")


def test_split_and_merge_keep_all_records(tmp_path: Path, path: str) -> None:
    written = split(path, str(tmp_path / "part.tfrecord"), 7)
    assert [count for _, count in written] == [715, 715, 714, 714, 714, 714, 714]
    assert merge(tmp_path / "part-*", str(tmp_path / "all.tfrecord")) == 5000
    assert sorted(read_records(tmp_path / "all.tfrecord")) == RECORDS


def test_split_by_shares_has_exact_counts(tmp_path: Path, path: str) -> None:
    shares = {str(tmp_path / "a"): 0.7, str(tmp_path / "b"): 0.2, str(tmp_path / "c"): 0.1}
    assert [count for _, count in split_by_shares(path, shares)] == [3500, 1000, 500]
    assert list(read_records(list(shares))) == RECORDS


@pytest.mark.parametrize("share", [0, -1, float("nan"), float("inf")])
def test_split_rejects_shares_that_are_not_positive(
    tmp_path: Path, path: str, share: float
) -> None:
    with pytest.raises(DataError, match="must be a number greater than 0"):
        split_by_shares(path, {str(tmp_path / "a"): 1, str(tmp_path / "b"): share})


@pytest.mark.parametrize("memory", [1 << 30, 20_000])
def test_shuffle_keeps_every_record(tmp_path: Path, path: str, memory: int) -> None:
    outs = []
    for name in ("a", "b"):
        assert shuffle(path, str(tmp_path / name), seed=4, memory=memory) == 5000
        outs.append(list(read_records(tmp_path / name)))
    assert outs[0] == outs[1] != RECORDS
    assert sorted(outs[0]) == RECORDS
    # Few neighbours are still next to each other.
    near = sum(abs(int(x) - int(y)) == 1 for x, y in zip(outs[0], outs[0][1:], strict=False))
    assert near < 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "in.tfrecord"]


def test_shuffle_raises_the_limit_of_open_files(tmp_path: Path, path: str) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Tests in the same process may have left files open.
    few = len(list(Path("/proc/self/fd").iterdir())) + 40
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
        assert len(split(path, str(tmp_path / "part.tfrecord"), 80)) == 80
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
        # So little memory that there are 89 buckets.
        assert shuffle(path, str(tmp_path / "all"), memory=2500) == 5000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert sorted(read_records(tmp_path / "all")) == RECORDS


def test_output_must_not_be_an_input(tmp_path: Path, path: str) -> None:
    with pytest.raises(DataError, match="would be read and written"):
        merge([path], path)
    assert list(read_records(path)) == RECORDS
