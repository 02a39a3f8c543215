from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import DataError
from phalanx.records import Compression, read_rows, read_table, verify, write_examples
from phalanx.records.convert import convert

ROWS: list[dict[str, Any]] = [
    {"id": n, "name": f"name {n}".encode(), "raw": bytes([n, 255]), "tags": [n] * (n % 3)}
    for n in range(20)
]


def png(width: int = 2, height: int = 3) -> bytes:
    def part(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes(width)) * height)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", rows) + part(b"IEND", b"")


@pytest.mark.parametrize("ending", ["parquet", "jsonl"])
def test_convert_round_trip(tmp_path: Path, ending: str) -> None:
    write_examples(tmp_path / "a.tfrecord", ROWS)
    assert convert(str(tmp_path / "a.tfrecord"), str(tmp_path / f"b.{ending}")) == 20
    assert convert(str(tmp_path / f"b.{ending}"), str(tmp_path / "c.tfrecord")) == 20
    assert (tmp_path / "a.tfrecord").read_bytes() == (tmp_path / "c.tfrecord").read_bytes()


def test_compressed_file_names_of_spark_and_hadoop_are_recognized(tmp_path: Path) -> None:
    write_examples(tmp_path / "a.tfrecord.deflate", ROWS, shards=2)
    first = tmp_path / "a-00000-of-00002.tfrecord.deflate"
    assert verify(str(first)).compression is Compression.ZLIB
    assert convert(str(first), str(tmp_path / "b.jsonl")) == 10


def test_csv_round_trip(tmp_path: Path) -> None:
    write_examples(tmp_path / "a.tfrecord", [{"id": r["id"], "name": r["name"]} for r in ROWS])
    convert(str(tmp_path / "a.tfrecord"), str(tmp_path / "b.csv"))
    assert (tmp_path / "b.csv").read_text().splitlines()[:2] == ['"id","name"', '0,"name 0"']
    convert(str(tmp_path / "b.csv"), str(tmp_path / "c.tfrecord"), shards=2)
    assert sum(1 for _ in read_rows(tmp_path / "c-*")) == 20


def test_csv_rejects_lists_and_bytes(tmp_path: Path) -> None:
    write_examples(tmp_path / "a.tfrecord", ROWS)
    with pytest.raises(DataError, match="these are lists: tags"):
        convert(str(tmp_path / "a.tfrecord"), str(tmp_path / "b.csv"))
    write_examples(tmp_path / "a.tfrecord", [{"raw": b"\xff"}])
    with pytest.raises(DataError, match="CSV holds text"):
        convert(str(tmp_path / "a.tfrecord"), str(tmp_path / "b.csv"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tfrecord"]


def test_image_directory_round_trip(tmp_path: Path) -> None:
    for name in ("rose/1.png", "rose/2.png", "tulip/3.png"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(png())
    assert convert(str(tmp_path / "in"), str(tmp_path / "a.tfrecord")) == 3
    table = read_table(tmp_path / "a.tfrecord")
    assert table["label"].to_pylist() == [0, 0, 1]
    assert table["label_name"].to_pylist() == [b"rose", b"rose", b"tulip"]
    assert convert(str(tmp_path / "a.tfrecord"), str(tmp_path / "out") + "/") == 3
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in tmp_path.rglob("out/*/*"))
    assert found == ["rose/000000.png", "rose/000001.png", "tulip/000002.png"]


def test_label_cannot_escape_the_directory(tmp_path: Path) -> None:
    write_examples(tmp_path / "a.tfrecord", [{"image": png(), "label_name": b"../../evil"}])
    convert(str(tmp_path / "a.tfrecord"), str(tmp_path / "out") + "/")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_.._evil"]


@pytest.mark.parametrize(
    ("source", "content", "out", "words"),
    [
        ("a.jsonl", "{bad", "b.tfrecord", "line 1, is not JSON"),
        ("a.jsonl", "[1]", "b.tfrecord", "not an object"),
        ("a.jsonl", '{}\n{"x": {"base64": "a"}}', "b.tfrecord", "line 2, has invalid base64"),
        ("a.jsonl", '{"x": [{"base64": 5}]}', "b.tfrecord", "line 1, has invalid base64"),
        ("a.parquet", "nope", "b.tfrecord", "not a Parquet file"),
        ("a.txt", "nope", "b.tfrecord", "the format of .*a.txt is unknown"),
        ("a.jsonl", "{}", "b.csv", "must be TFRecord"),
        ("missing.csv", None, "b.tfrecord", "there is no file"),
    ],
)
def test_convert_errors_name_the_problem(
    tmp_path: Path, source: str, content: str | None, out: str, words: str
) -> None:
    if content is not None:
        (tmp_path / source).write_text(content)
    with pytest.raises(DataError, match=words):
        convert(str(tmp_path / source), str(tmp_path / out))
    assert not (tmp_path / out).exists()


def test_damaged_parquet_file_is_an_error(damaged_parquet: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a\.parquet is not a Parquet file that can be read"):
        convert(str(damaged_parquet), str(tmp_path / "b.tfrecord"))
