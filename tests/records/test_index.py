from pathlib import Path

import pytest

from phalanx.errors import DataError, RecordError
from phalanx.records import RecordIndex, RecordWriter, open_index

RECORDS = [b"x" * (number % 50) for number in range(1000)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    with RecordWriter(tmp_path / "a.tfrecord") as writer:
        writer.write_all(RECORDS)
    return str(tmp_path / "a.tfrecord")


@pytest.mark.parametrize("stride", [1, 2, 7, 1000, 5000])
def test_read_returns_any_range(path: str, stride: int) -> None:
    index = RecordIndex.build(path, stride=stride)
    assert len(index) == 1000
    for start, stop in ((0, 0), (0, 1), (3, 40), (998, 1000), (0, 1000), (1000, 1000)):
        assert list(index.read(start, stop)) == RECORDS[start:stop]


def test_read_rejects_a_range_outside_the_file(path: str) -> None:
    with pytest.raises(IndexError):
        RecordIndex.build(path).read(990, 1001)


@pytest.mark.parametrize("stride", [1, 7])
def test_take_returns_records_in_any_order(path: str, stride: int) -> None:
    index = RecordIndex.build(path, stride=stride)
    numbers = [999, 3, 3, 0, 500]
    assert index.take(numbers) == [RECORDS[number] for number in numbers]
    assert index.take([]) == []
    for wrong in ([3, 1000], [-1]):
        with pytest.raises(IndexError):
            index.take(wrong)


def test_take_detects_damage_and_a_changed_file(path: str) -> None:
    index = RecordIndex.build(path)
    data = bytearray(Path(path).read_bytes())
    data[index.offsets[30] + 12] ^= 1
    Path(path).write_bytes(data)
    assert index.take([31, 29]) == [RECORDS[31], RECORDS[29]]
    with pytest.raises(RecordError, match="does not fit its checksum") as caught:
        index.take([40, 30, 20])
    assert (caught.value.index, caught.value.offset) == (30, index.offsets[30])
    # The frames of another file can be valid where those of the index were expected.
    with RecordWriter(path) as writer:
        writer.write_all([b"", *RECORDS])
    with pytest.raises(RecordError, match="changed after it was indexed"):
        index.take(list(range(20)))


def test_saved_index_is_used_until_the_file_changes(path: str) -> None:
    built = RecordIndex.build(path, stride=3)
    built.save()
    assert RecordIndex.load(path) == built
    with RecordWriter(path, append=True) as writer:
        writer.write(b"more")
    assert RecordIndex.load(path) is None
    assert len(open_index(path)) == 1001


def test_damaged_index_is_ignored(path: str) -> None:
    Path(path + ".index").write_bytes(b"nonsense" * 10)
    assert RecordIndex.load(path) is None


def test_read_detects_damage(path: str) -> None:
    index = RecordIndex.build(path)
    data = bytearray(Path(path).read_bytes())
    data[index.offsets[30] + 12] ^= 1
    Path(path).write_bytes(data)
    with pytest.raises(RecordError) as caught:
        index.read(20, 40)
    assert (caught.value.index, caught.value.offset) == (30, index.offsets[30])


def test_compressed_file_cannot_be_indexed(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "a.gz") as writer:
        writer.write(b"x")
    with pytest.raises(DataError, match="compressed"):
        RecordIndex.build(str(tmp_path / "a.gz"))
