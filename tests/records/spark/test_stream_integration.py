"""Structured streaming in a real Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phalanx import records
from phalanx.records.storage import write_bytes


def run(df: Any, out: Path, checkpoint: Path, **options: str) -> None:
    """Run a stream over the files that exist now."""
    query = (
        df.writeStream.format("tfrecord")
        .options(checkpointLocation=str(checkpoint), path=str(out), **options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(200)


def numbers(path: Path) -> list[int]:
    files = sorted(str(file) for file in path.glob("part-*"))
    return sorted(row["x"] for row in records.read_rows(files)) if files else []


def test_stream_reads_every_file_once(spark: Any, tmp_path: Path) -> None:
    source, out, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    records.write_examples(source / "a", [{"x": 1}, {"x": 2}])
    stream = spark.readStream.format("tfrecord").schema("x long").option("maxFilesPerTrigger", 1)
    run(stream.load(str(source)), out, checkpoint)
    assert numbers(out) == [1, 2]
    records.write_examples(source / "c", [{"x": 4}])
    records.write_examples(source / "b", [{"x": 3}])
    records.write_examples(source / "_hidden", [{"x": 9}])
    run(stream.load(str(source)), out, checkpoint)
    assert numbers(out) == [1, 2, 3, 4]
    run(stream.load(str(source)), out, checkpoint)
    assert numbers(out) == [1, 2, 3, 4]
    assert not (out / "_temporary").exists()
    assert len(list((checkpoint / "commits").glob("[0-9]*"))) == 3


def test_repeated_batch_is_published_once(spark: Any, tmp_path: Path) -> None:
    source, out, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    records.write_examples(source / "a", [{"x": 1}])
    stream = spark.readStream.format("tfrecord").schema("x long").load(str(source))
    run(stream, out, checkpoint)
    before = sorted(out.glob("part-*"))
    # As if the driver had died after publishing the batch, before Spark recorded that.
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    run(stream, out, checkpoint)
    assert sorted(out.glob("part-*")) == before
    # As if it had died while publishing: some files exist, but the state file does not.
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    (mark,) = out.glob("_stream-*")
    mark.unlink()
    half = before[0].name.replace("part-00000", "part-00007")
    write_bytes(str(out / half), before[0].read_bytes())
    run(stream, out, checkpoint)
    assert numbers(out) == [1]


def test_missing_file_stops_the_stream(spark: Any, tmp_path: Path) -> None:
    source, out, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    records.write_examples(source / "a", [{"x": 1}])
    stream = spark.readStream.format("tfrecord").schema("x long").load(str(source))
    run(stream, out, checkpoint)
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    (source / "a").unlink()
    with pytest.raises(
        Exception, match="1 of 1 files that the stream was about to read no longer exist"
    ):
        run(stream, out, checkpoint)
