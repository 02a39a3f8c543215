from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.errors import DataError, RecordError
from phalanx.records import RecordWriter, ShardedWriter, read_records, shard_path


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz", "a.tfrecord.zlib"])
def test_append_keeps_existing_records(tmp_path: Path, name: str) -> None:
    for records in ([b"one", b"two"], [b"three"]):
        with RecordWriter(tmp_path / name, append=True) as writer:
            writer.write_all(records)
    assert list(read_records(tmp_path / name)) == [b"one", b"two", b"three"]


def test_append_rejects_a_damaged_file(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "a") as writer:
        writer.write(b"one")
    damaged = (tmp_path / "a").read_bytes()[:-1]
    (tmp_path / "a").write_bytes(damaged)
    with pytest.raises(RecordError), RecordWriter(tmp_path / "a", append=True) as writer:
        writer.write(b"two")
    assert (tmp_path / "a").read_bytes() == damaged
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_error_leaves_the_old_file_unchanged(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "a") as writer:
        writer.write(b"old")
    with pytest.raises(KeyError), RecordWriter(tmp_path / "a") as writer:
        writer.write(b"new")
        raise KeyError
    assert list(read_records(tmp_path / "a")) == [b"old"]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_killed_writer_leaves_no_partial_file(tmp_path: Path) -> None:
    code = (
        "import sys; from phalanx.records import RecordWriter\n"
        "with RecordWriter(sys.argv[1]) as writer:\n"
        "    while True:\n"
        "        writer.write(b'x' * 100_000)\n"
        "        if writer.count == 50: print('ready', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "a.tfrecord"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "a.tfrecord").exists()
    assert not list(tmp_path.glob("*.tfrecord"))


@pytest.mark.parametrize("name", ["a.tfrecord", "a.tfrecord.gz"])
def test_closed_writer_rejects_writes(tmp_path: Path, name: str) -> None:
    with RecordWriter(tmp_path / name) as writer:
        writer.write(b"one")
        writer.close()
        with pytest.raises(DataError, match=f"{name} is closed"):
            writer.write(b"two")
        with pytest.raises(DataError, match=f"{name} is closed"):
            writer.write_framed(b"", 0)
    assert list(read_records(tmp_path / name)) == [b"one"]
    with pytest.raises(DataError, match="is closed"), writer:
        pass
    assert list(read_records(tmp_path / name)) == [b"one"]
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_reused_memory_is_copied(tmp_path: Path) -> None:
    memory = bytearray(3)
    with RecordWriter(tmp_path / "a") as writer:
        for word in (b"one", b"two"):
            memory[:] = word
            writer.write(memory)
    assert list(read_records(tmp_path / "a")) == [b"one", b"two"]


def test_buffer_limits_the_memory(tmp_path: Path) -> None:
    with RecordWriter(tmp_path / "a", buffer=50_000) as writer:
        writer.write(bytes(40_000))
        [unfinished] = tmp_path.iterdir()
        assert unfinished.stat().st_size == 0
        writer.write(bytes(40_000))
        assert unfinished.stat().st_size > 70_000


def test_records_are_distributed_over_shards_in_turn(tmp_path: Path) -> None:
    with ShardedWriter(tmp_path / "train.tfrecord.gz", 3) as writer:
        for number in range(7):
            writer.write(b"%d" % number)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "train-00000-of-00003.tfrecord.gz",
        "train-00001-of-00003.tfrecord.gz",
        "train-00002-of-00003.tfrecord.gz",
    ]
    assert list(read_records(writer.paths[0])) == [b"0", b"3", b"6"]


def test_error_leaves_no_shard(tmp_path: Path) -> None:
    with pytest.raises(KeyError), ShardedWriter(tmp_path / "train", 3) as writer:
        writer.write(b"x")
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_shard_path_adds_a_missing_suffix() -> None:
    assert shard_path("out/train", 0, 2) == "out/train-00000-of-00002.tfrecord"


def test_sharded_writer_rejects_zero_shards(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="shards is 0"):
        ShardedWriter(tmp_path / "a", 0)


def test_directory_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a directory"), RecordWriter(tmp_path):
        pass
