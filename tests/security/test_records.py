"""TFRecord files come from anywhere: memory and time stay in proportion to what was read."""

import gzip
import json
import random
import struct
import subprocess
import sys
import tracemalloc
from array import array
from pathlib import Path
from typing import Any

import pytest
from tests.security.measured import run_measured

from phalanx.errors import DataError, RecordError
from phalanx.records import RecordIndex, Schema, framing, read_records, verify
from phalanx.records.codec import codec, load_codec
from phalanx.records.codec.fallback import message_classes
from phalanx.records.convert import row_to_json

PYTHON = load_codec("python")
MOST_PADDING = 128 << 20


def make_example(**features: list[int]) -> bytes:
    message = message_classes()[0]()
    for name, values in features.items():
        message.features.feature[name].int64_list.value.extend(values)
    return bytes(message.SerializeToString())


def write_padded(path: Path, width: int, missing: int) -> None:
    """Write one row with many values, which all other rows lack: a few hundred bytes."""
    data = bytes(codec.frame([make_example(wide=[0] * width), *[b""] * missing]))
    path.write_bytes(gzip.compress(data, 9, mtime=0))


@pytest.mark.parametrize("name", ["native", "python"])
def test_rows_that_lack_a_wide_feature_are_an_error_that_names_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_CODEC", name)
    write_padded(tmp_path / "bomb.tfrecord.gz", 10_000, 6000)
    assert (tmp_path / "bomb.tfrecord.gz").stat().st_size < 800
    done = run_measured(
        tmp_path,
        "records",
        "convert",
        tmp_path / "bomb.tfrecord.gz",
        "--out",
        tmp_path / "out.parquet",
    )
    assert done.returncode == 1, done.stderr
    assert "feature 'wide' needs more than 128 MiB for the rows that lack it" in done.stderr
    assert done.peak < 360
    assert not (tmp_path / "out.parquet").exists()


def test_many_columns_of_many_rows_are_an_error(tmp_path: Path) -> None:
    names = [f"{number:x}" for number in range(16_000)]
    wide = make_example(**{name: [1] for name in names})
    (tmp_path / "wide.tfrecord").write_bytes(bytes(codec.frame([*[b""] * 40_000, wide])))
    done = run_measured(tmp_path, "records", "schema", tmp_path / "wide.tfrecord")
    assert done.returncode == 1, done.stderr
    assert "needs more than 128 MiB for the rows that lack it" in done.stderr
    assert done.peak < 360


def test_both_codecs_stop_at_the_same_row() -> None:
    data = bytes(codec.frame([make_example(wide=[0] * 4096), *[b""] * 5000]))
    spans = codec.scan(data, 0, 6000, True)[0]
    columns = [(b"wide", 3, False, 4096)]
    with pytest.raises(codec.DecodeError) as found:
        codec.decode(data, spans, columns, False)
    with pytest.raises(PYTHON.DecodeError) as expected:
        PYTHON.decode(data, spans, columns, False)
    assert found.value.args == expected.value.args
    assert found.value.args[:2] == (1 + MOST_PADDING // (4 + 8 * 4096), "wide")


def delimited(number: int, size: int) -> bytes:
    """The tag and the length of a field."""
    length = bytearray([number << 3 | 2])
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*length, size])


def make_many_int64s(count: int, before: bytes = b"") -> bytes:
    """An Example with so many zeros, of one byte each, in the feature `many`."""
    packed = delimited(1, count)
    message = before + delimited(3, count + len(packed)) + packed
    message = b"\x0a\x04many" + delimited(2, count + len(message)) + message
    message = delimited(1, count + len(message)) + message
    return delimited(1, count + len(message)) + message + bytes(count)


MOST_INT64S = (512 << 20) // 8


def test_a_byte_that_becomes_an_int64_counts(tmp_path: Path) -> None:
    example = make_many_int64s(MOST_INT64S + 1)
    (tmp_path / "bomb.tfrecord.gz").write_bytes(gzip.compress(bytes(codec.frame([example])), 1))
    assert (tmp_path / "bomb.tfrecord.gz").stat().st_size < 1 << 19
    done = run_measured(tmp_path, "records", "schema", tmp_path / "bomb.tfrecord.gz")
    assert done.returncode == 1, done.stderr
    assert "feature 'many' has more int64 values than fit into 512 MiB" in done.stderr
    assert done.peak < 500


@pytest.mark.parametrize("before", [b"", b"\x12\x00", b"\x22\x00"], ids=["", "float", "unknown"])
def test_both_codecs_limit_int64s(before: bytes) -> None:
    example, few = make_many_int64s(MOST_INT64S - 1, before), make_example(few=[1, 2])
    spans = array("q", [0, len(few), len(few), len(example)])
    errors = []
    for each in (codec, PYTHON):
        with pytest.raises(each.DecodeError) as found:
            each.decode(few + example, spans, None, False)
        errors.append(found.value.args)
    assert errors[0] == errors[1]
    assert errors[0][:2] == (1, "many")


def test_rows_that_lack_many_features_are_small_in_python() -> None:
    """Each of them takes four bytes of the budget."""
    wide = make_example(**{f"{number:x}": [1] for number in range(200)})
    data = wide
    spans = array("q", [0, len(wide), *[0, 0] * 2000])
    PYTHON.decode(data, spans[:4], None, False)
    tracemalloc.start()
    try:
        PYTHON.decode(data, spans, None, False)
        assert tracemalloc.get_traced_memory()[1] < 2 * 4 * 200 * 2000
    finally:
        tracemalloc.stop()


def test_members_of_a_few_bytes_are_scanned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each member of a gzip file once made the reader scan all that it had read before."""
    data, scanned = bytes(codec.frame([b"x" * 64] * 2000)), 0
    members = (gzip.compress(data[at : at + 16], 1) for at in range(0, len(data), 16))
    (tmp_path / "members.tfrecord.gz").write_bytes(b"".join(members))

    class Counting:
        def scan(self, data: memoryview, start: int, *more: Any) -> Any:
            nonlocal scanned
            scanned += len(data) - start
            return codec.scan(data, start, *more)

    monkeypatch.setattr(framing, "codec", Counting())
    chunks = framing.read_chunks(str(tmp_path / "members.tfrecord.gz"), most=10_000)
    assert sum(map(len, chunks)) == 2000
    assert scanned < 4 * len(data)


def masked(data: bytes) -> int:
    crc = codec.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def make_header(length: int) -> bytes:
    data = struct.pack("<Q", length)
    return data + struct.pack("<I", masked(data))


COUNT_CHECKED_BYTES = """
import json, os, sys
os.environ["PHALANX_CODEC"] = "python"
from phalanx.records import verify
from phalanx.records.codec import fallback, load_codec
fast = load_codec("native").crc32c
checked = dict(lengths=0, data=0)
def count(data):
    size = len(memoryview(data))
    checked["lengths" if size == 8 else "data"] += 1 if size == 8 else size
    return fast(bytes(data))
fallback.crc32c = count
report = verify(sys.argv[1])
print(json.dumps(checked | dict(records=report.records, damage=len(report.damage))))
"""


def count_checked_bytes(path: Path) -> dict[str, int]:
    """How many lengths, and how many bytes of data, the search for records computes CRCs of."""
    command = [sys.executable, "-c", COUNT_CHECKED_BYTES, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_headers_inside_damage_are_searched_in_linear_time(tmp_path: Path) -> None:
    """Each header claims all that follows, so that each once cost a checksum of the whole file."""
    size = 1 << 20
    count = size // 12
    headers = [make_header(size - 12 * number - 16) for number in range(count - 2)]
    (tmp_path / "nested").write_bytes(b"damaged!" + b"".join(headers) + bytes(64))
    found = count_checked_bytes(tmp_path / "nested")
    assert found["lengths"] < 3 * size
    assert found["data"] < (64 << 20) + 10 * size
    assert found["damage"] >= 1


def test_records_between_hostile_headers_are_searched_in_linear_time(tmp_path: Path) -> None:
    """A good record after each header restarts the search, and must not restart its budget."""
    good = bytes(codec.frame([b"good"]))
    data = (make_header(900_000) + good) * 30_000 + bytes(1 << 20)
    (tmp_path / "mixed").write_bytes(data)
    found = count_checked_bytes(tmp_path / "mixed")
    # Twice, because a scan also ends at data that it found to be damaged.
    assert found["data"] < 2 * ((64 << 20) + 10 * len(data))


def test_undamaged_records_after_damage_are_found(tmp_path: Path) -> None:
    records = [bytes([number]) * (number * 37) for number in range(100)]
    data = bytearray(codec.frame(records))
    data[3] ^= 1  # the first length
    at = data.index(bytes([50]) * (50 * 37))
    data[at] ^= 1  # the data of a record, and the length of the next
    data[at + 50 * 37 + 5] ^= 1
    (tmp_path / "damaged").write_bytes(data)
    report = verify(str(tmp_path / "damaged"))
    assert report.records == 97
    assert len(report.damage) == 2


@pytest.mark.parametrize("length", [2**31, 2**40, 2**63 - 1, 2**63, 2**64 - 20, 2**64 - 1])
def test_impossible_lengths_are_damage(length: int, tmp_path: Path) -> None:
    good = bytes(codec.frame([b"good"]))
    (tmp_path / "long").write_bytes(make_header(length) + bytes(100) + good)
    report = verify(str(tmp_path / "long"))
    assert report.records == 1
    with pytest.raises(RecordError, match="bytes of data"):
        list(read_records(str(tmp_path / "long")))


def test_a_compressed_record_that_expands_without_limit_is_damage(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "bomb.tfrecord.gz", "wb", compresslevel=1) as file:
        file.write(make_header(1 << 30))
        for _ in range(1024):
            file.write(bytes(1 << 20))
    done = run_measured(tmp_path, "records", "verify", tmp_path / "bomb.tfrecord.gz")
    assert done.returncode == 1, done.stderr
    assert "decompress the file first" in done.stdout + done.stderr
    assert done.peak < 360


def test_a_large_record_of_few_compressed_bytes_is_damage(tmp_path: Path) -> None:
    message = message_classes()[0]()
    message.features.feature["a"].bytes_list.value.append(bytes(150 << 20))
    data = bytes(codec.frame([message.SerializeToString()]))
    path = tmp_path / "bomb.tfrecord.gz"
    path.write_bytes(gzip.compress(data, 1))
    assert path.stat().st_size < 1_000_000
    out = tmp_path / "out.jsonl"
    done = run_measured(tmp_path, "records", "convert", path, "--out", out)
    assert done.returncode == 1, done.stderr
    assert "expands more than 64 times: decompress the file first" in done.stderr
    assert done.peak < 360


def test_a_large_record_that_expands_little_is_read(tmp_path: Path) -> None:
    record = random.Random(7).randbytes(1 << 20) * 70
    path = tmp_path / "large.tfrecord.gz"
    path.write_bytes(gzip.compress(bytes(codec.frame([record])), 0))
    assert list(read_records(str(path))) == [record]


def test_binary_values_are_not_longer_as_json_than_as_base64() -> None:
    for value in (bytes(100_000), b"\1\2\3text" * 1000):
        assert len(row_to_json({"a": value})) < 1.34 * len(value) + 100
    assert json.loads(row_to_json({"a": b"\0"})) == {"a": "\0"}
    assert json.loads(row_to_json({"a": b"long\n" * 1000})) == {"a": "long\n" * 1000}


def test_an_index_that_points_elsewhere_is_not_used(tmp_path: Path) -> None:
    path = str(tmp_path / "a.tfrecord")
    Path(path).write_bytes(bytes(codec.frame([b"x"] * 3)))
    index = RecordIndex.build(path)
    for bad in ([0, 17, 2**62, 51], [0, -5, 34, 51], [0, 34, 17, 51], [0, 17, 34, 2**62]):
        saved = RecordIndex(path, index.size, index.count, 1, type(index.offsets)("q", bad))
        saved.save()
        assert RecordIndex.load(path) is None
    index.save()
    assert RecordIndex.load(path) == index


@pytest.mark.parametrize(
    "changes",
    [{"name": 5}, {"name": "\ud800"}, {"shape": ["a"]}, {"shape": [1.5]}, {"kind": []}],
    ids=repr,
)
def test_a_malformed_schema_is_an_error(changes: dict[str, object]) -> None:
    feature = {"name": "x", "kind": "float", "shape": [], "sequence": False, **changes}
    with pytest.raises(DataError, match="schema"):
        Schema.loads(json.dumps({"version": 1, "features": [feature]}))


def test_a_deeply_nested_schema_is_an_error() -> None:
    with pytest.raises(DataError, match="nested too deeply"):
        Schema.loads("[" * 100_000)
