import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.errors import RecordError
from phalanx.records import (
    RecordWriter,
    count_records,
    read_chunks,
    read_records,
)


def some_records(count: int = 300, seed: int = 0) -> list[bytes]:
    source = random.Random(seed)
    return [source.randbytes(source.choice([0, 1, 30, 400, 9000])) for _ in range(count)]


def write(path: Path, records: list[bytes]) -> bytes:
    with RecordWriter(path) as writer:
        writer.write_all(records)
    return path.read_bytes()


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz", "a.tfrecord.zlib"])
def test_records_round_trip(tmp_path: Path, name: str) -> None:
    records = some_records()
    write(tmp_path / name, records)
    assert list(read_records(tmp_path / name)) == records
    assert count_records(str(tmp_path / name)) == len(records)


@pytest.mark.parametrize("most", [1, 7, 100, 1000])
def test_chunks_have_the_requested_size(tmp_path: Path, most: int) -> None:
    records = some_records()
    write(tmp_path / "a", records)
    chunks = [list(chunk) for chunk in read_chunks(str(tmp_path / "a"), most=most)]
    assert [record for chunk in chunks for record in chunk] == records
    assert all(len(chunk) == most for chunk in chunks[:-1])


def test_record_larger_than_the_window_is_read(tmp_path: Path) -> None:
    records = [b"a" * 5_000_000, b"b", b"c" * 3_000_000]
    write(tmp_path / "a", records)
    assert list(read_records(tmp_path / "a")) == records


def test_offsets_point_to_the_records(tmp_path: Path) -> None:
    records = some_records(20)
    data = write(tmp_path / "a", records)
    [chunk] = read_chunks(str(tmp_path / "a"))
    for number, record in enumerate(records):
        start = chunk.offset_of(number) + 12
        assert data[start : start + len(record)] == record


def test_empty_file_has_no_records(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    assert list(read_records(tmp_path / "a")) == []


def flip(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (0, "the length does not fit"),
        (9, "the length does not fit"),
        (12, "the data (30 bytes) does not fit"),
        (12 + 30, "the data (30 bytes) does not fit"),
    ],
)
def test_flipped_bit_names_record_and_offset(tmp_path: Path, place: int, reason: str) -> None:
    data = write(tmp_path / "a", [b"x" * 30] * 5)
    (tmp_path / "a").write_bytes(flip(data, 2 * 46 + place))
    with pytest.raises(RecordError) as caught:
        list(read_records(tmp_path / "a"))
    assert (caught.value.index, caught.value.offset) == (2, 92)
    assert caught.value.path == str(tmp_path / "a")
    assert reason in str(caught.value)


@pytest.mark.parametrize("cut", [1, 4, 20, 34, 35, 45])
def test_truncated_file_names_the_record(tmp_path: Path, cut: int) -> None:
    data = write(tmp_path / "a", [b"x" * 30] * 5)
    (tmp_path / "a").write_bytes(data[:-cut])
    records = []
    with pytest.raises(RecordError, match=r"record 4 at offset 184: .*file ends") as caught:
        for record in read_records(tmp_path / "a"):
            records.append(record)
    assert len(records) == 4
    assert caught.value.index == 4


def test_text_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("this is a text and nothing else\n" * 10)
    with pytest.raises(RecordError, match=r"record 0 at offset 0: .* no TFRecord file at all"):
        list(read_records(tmp_path / "a"))


def test_forged_length_takes_no_memory(tmp_path: Path) -> None:
    from phalanx.records.codec import codec

    length = (4 << 30).to_bytes(8, "little")
    crc = codec.crc32c(length)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    (tmp_path / "a").write_bytes(length + masked.to_bytes(4, "little") + b"x" * 1000)
    code = (
        "import resource, sys; from phalanx.records import read_records\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "list(read_records(sys.argv[1]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "a"], capture_output=True, text=True, check=False
    )
    assert "RecordError" in ran.stderr
    assert "4294967296 bytes of data, and 2 GiB is the limit" in ran.stderr


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "a") as writer:
        for _ in range(12_000):
            writer.write(b"x" * 5000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert count_records(str(tmp_path / "a")) == 12_000
    assert sum(1 for _ in read_records(tmp_path / "a")) == 12_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


def test_import_loads_neither_tensorflow_nor_arrow_nor_numpy() -> None:
    code = "import sys, phalanx.records; print({'tensorflow', 'pyarrow', 'numpy'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
