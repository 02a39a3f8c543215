import bz2
import io
import random
from pathlib import Path

import pytest

from phalanx.errors import DataError, RecordError
from phalanx.records import Compression, RecordWriter, read_records
from phalanx.records.compression import compression_for, detect_compression


def write(path: Path) -> list[bytes]:
    source = random.Random(0)
    records = [source.randbytes(source.choice([0, 1, 30, 400, 9000])) for _ in range(300)]
    with RecordWriter(path) as writer:
        writer.write_all(records)
    return records


@pytest.mark.parametrize(
    ("name", "compression"),
    [
        ("a.tfrecord", Compression.NONE),
        ("a.tfrecord.gz", Compression.GZIP),
        ("a.tfrecord.zlib", Compression.ZLIB),
        ("a.tfrecord.deflate", Compression.ZLIB),
    ],
)
def test_compression_follows_the_name_and_is_detected(
    tmp_path: Path, name: str, compression: Compression
) -> None:
    write(tmp_path / name)
    assert compression_for(name) is compression
    assert detect_compression(io.BytesIO((tmp_path / name).read_bytes())) is compression


@pytest.mark.parametrize("name", ["a.gz", "a.zlib"])
def test_truncated_compressed_file_yields_its_complete_records(tmp_path: Path, name: str) -> None:
    records = write(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    found = []
    with pytest.raises(RecordError, match="data is cut short"):
        for record in read_records(tmp_path / name):
            found.append(record)
    assert 0 < len(found) < len(records)
    assert found == records[: len(found)]


def test_foreign_compression_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.bz2").write_bytes(bz2.compress(b"record"))
    with pytest.raises(DataError, match=r"a.bz2 is compressed with bzip2, which TensorFlow does"):
        list(read_records(tmp_path / "a.bz2"))


def test_given_compression_overrides_detection(tmp_path: Path) -> None:
    write(tmp_path / "a.gz")
    with pytest.raises(RecordError):
        list(read_records(tmp_path / "a.gz", compression=Compression.NONE))
