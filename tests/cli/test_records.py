"""`phalanx records`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from tests.cli.in_process import invoke

from phalanx.records import RecordWriter, read_records, write_examples

phalanx = partial(invoke, "records")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = [{"label": n, "image": b"GIF89a\x40\0\x30\0" + b"x" * n} for n in range(30)]
    write_examples(tmp_path / "a.tfrecord", rows)
    return tmp_path / "a.tfrecord"


def test_info_shows_counts_and_features(path: Path) -> None:
    ran = phalanx("info", path)
    assert ran.returncode == 0, ran.stderr
    assert "30 records in 1 file" in ran.stdout
    assert "label    int64  -        1            0 to 29" in ran.stdout


def test_info_accepts_records_that_are_not_examples(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "a") as writer:
        writer.write(b"\xff\xff")
    ran = phalanx("info", tmp_path / "a")
    assert ran.returncode == 0
    assert "not Examples" in ran.stdout


def test_head_shows_images_as_format_and_size(path: Path) -> None:
    assert phalanx("head", "-n", 1, path).stdout.splitlines()[1:] == [
        "  image: gif 64x48 image (10 B)",
        "  label: 0",
    ]
    lines = phalanx("head", "-n", 2, "--json", path).stdout.splitlines()
    assert [json.loads(line)["label"] for line in lines] == [0, 1]


def test_schema_is_saved(path: Path) -> None:
    ran = phalanx("schema", path, "--save", path.parent / "schema.json")
    assert "image    bytes" in ran.stdout
    saved = json.loads((path.parent / "schema.json").read_text())
    assert [feature["name"] for feature in saved["features"]] == ["image", "label"]


def test_count_prints_the_records_of_each_file(path: Path) -> None:
    assert phalanx("count", path).stdout == f"30\t{path}\n"


def test_verify_of_intact_files_exits_with_0(path: Path) -> None:
    ran = phalanx("verify", path)
    assert ran.returncode == 0
    assert ran.stdout.startswith("30 sound records in 1 files")


def test_verify_reports_damage_and_repair_saves_the_rest(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[15] ^= 1
    path.write_bytes(data)
    ran = phalanx("verify", path.parent / "*.tfrecord")
    assert ran.returncode == 1
    assert f"{path}: record 0 at offset 0: the data" in ran.stdout
    out = path.parent / "b"
    ran = phalanx("repair", path, "--out", out)
    assert ran.returncode == 0
    assert "dropped" in ran.stdout
    assert len(list(read_records(out))) == 29


def test_repair_refuses_several_files(path: Path) -> None:
    (path.parent / "b.tfrecord").write_bytes(path.read_bytes())
    done = phalanx("repair", path.parent / "*.tfrecord", "--out", path.parent / "c")
    assert done.returncode == 2
    assert "*.tfrecord is 2 files: repair one at a time" in done.stderr


def test_split_merge_shuffle_convert_and_index_write_their_files(path: Path) -> None:
    folder = path.parent
    assert phalanx("split", path, "--shards", 3, "-o", folder / "s.tfrecord").returncode == 0
    assert phalanx("merge", folder / "s-*", "-o", folder / "m.tfrecord").returncode == 0
    assert phalanx("shuffle", path, "-o", folder / "x.tfrecord", "--seed", 1).returncode == 0
    assert sorted(read_records(folder / "m.tfrecord")) == sorted(read_records(path))
    assert sorted(read_records(folder / "x.tfrecord")) == sorted(read_records(path))
    ran = phalanx("convert", path, "-o", folder / "c.parquet")
    assert ran.stdout == f"30 examples written to {folder / 'c.parquet'}\n"
    share = f"{folder / 'p'}=0.5"
    ran = phalanx("split", path, "--share", share, "--share", f"{folder / 'q'}=0.5")
    assert ran.stdout == f"15\t{folder / 'p'}\n15\t{folder / 'q'}\n"
    assert phalanx("index", path).stdout == f"30\t{path}.index\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["info", "none-*"], "no file matches none-*"),
        (["count", "."], ". is a directory"),
        (["split", "a", "--shards", "2"], "give --shards with --out"),
        (["split", "a", "--share", "x"], "write it as in --share train.tfrecord=0.9"),
        (["convert", "a", "-o", "b", "--from", "xml"], "there is no format xml"),
        (["merge", "-o", "b"], "Missing argument"),
    ],
)
def test_wrong_use_is_reported(arguments: list[str], message: str) -> None:
    ran = phalanx(*arguments)
    assert ran.returncode == 2
    assert message in ran.stderr
    assert "Traceback" not in ran.stderr
