"""The files of checkpoints: damage is found, and a failed save changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from phalanx.errors import CheckpointError, SaveError
from phalanx.train.model_dir.checkpoint_files import CheckpointFiles
from phalanx.train.model_dir.intact import find_intact, verify_checkpoint
from phalanx.train.model_dir.layout import list_checkpoints, step_of


@pytest.fixture
def checkpoint() -> tf.train.Checkpoint:
    return tf.train.Checkpoint(weights=tf.Variable(tf.random.normal([500])))


def steps(directory: Path) -> list[int]:
    return [step_of(path) for path in list_checkpoints(str(directory))]


def data_of(path: str) -> Path:
    return next(Path(path).parent.glob(f"{Path(path).name}.data-*"))


def truncate(path: str) -> None:
    data_of(path).write_bytes(data_of(path).read_bytes()[:100])


def flip_a_bit(path: str) -> None:
    content = bytearray(data_of(path).read_bytes())
    content[len(content) // 2] ^= 1
    data_of(path).write_bytes(content)


def remove_data(path: str) -> None:
    data_of(path).unlink()


def empty_index(path: str) -> None:
    Path(f"{path}.index").write_bytes(b"")


def damage_index(path: str) -> None:
    index = Path(f"{path}.index")
    content = bytearray(index.read_bytes())
    content[10] ^= 0xFF
    index.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, remove_data, empty_index, damage_index])
def test_a_damaged_checkpoint_is_named_and_passed_over(
    tmp_path: Path,
    checkpoint: tf.train.Checkpoint,
    damage: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = CheckpointFiles(str(tmp_path), 5, 1000)
    older, newest = files.write(1, checkpoint.write), files.write(2, checkpoint.write)
    assert find_intact(str(tmp_path)) == newest
    damage(newest)
    with pytest.raises(CheckpointError, match=r"model\.ckpt-2 is damaged"):
        verify_checkpoint(newest)
    assert find_intact(str(tmp_path)) == older
    assert f"using {older} instead of {newest}" in caplog.text
    damage(older)
    with pytest.raises(CheckpointError, match="none of the other 1 can be read either"):
        find_intact(str(tmp_path))


@pytest.mark.parametrize("content", [None, b"", b"\0\0\0\0garbage"])
def test_checkpoints_are_found_without_their_list(
    tmp_path: Path, checkpoint: tf.train.Checkpoint, content: bytes | None
) -> None:
    files = CheckpointFiles(str(tmp_path), 5, 1000)
    files.write(9, checkpoint.write)
    newest = files.write(10, checkpoint.write)
    if content is None:
        (tmp_path / "checkpoint").unlink()
    else:
        (tmp_path / "checkpoint").write_bytes(content)
    assert find_intact(str(tmp_path)) == newest


def test_a_failed_save_leaves_the_checkpoints_as_they_were(
    tmp_path: Path, checkpoint: tf.train.Checkpoint
) -> None:
    files = CheckpointFiles(str(tmp_path), 1, 1000)
    files.write(1, checkpoint.write)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def write_half(prefix: str) -> None:
        checkpoint.write(prefix)
        truncate(prefix)

    def run_out_of_space(prefix: str) -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device")

    for write in (write_half, run_out_of_space):
        for step in (1, 2):
            with pytest.raises(SaveError, match=f"model.ckpt-{step} cannot be written"):
                files.write(step, write)
            assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    files.write(3, checkpoint.write)
    assert steps(tmp_path) == [3]


def test_old_checkpoints_are_deleted_except_one_of_every_few_hours(
    tmp_path: Path, checkpoint: tf.train.Checkpoint
) -> None:
    hours = iter(range(100))
    for half in (range(1, 5), range(5, 9)):
        # A restarted run goes on with the list of the first.
        files = CheckpointFiles(str(tmp_path), 2, 3, clock=lambda: 1e9 + 3600 * next(hours))
        for step in half:
            files.write(step, checkpoint.write)
    assert steps(tmp_path) == [7, 8]
    kept = sorted(int(path.stem.rpartition("-")[2]) for path in tmp_path.glob("*.index"))
    assert kept[-2:] == [7, 8]
    assert 1 <= len(kept[:-2]) <= 3


def test_a_damaged_checkpoint_does_not_count_as_one_to_keep(
    tmp_path: Path, checkpoint: tf.train.Checkpoint
) -> None:
    files = CheckpointFiles(str(tmp_path), 2, 1000)
    paths = [files.write(step, checkpoint.write) for step in (1, 2)]
    truncate(paths[1])
    again = CheckpointFiles(str(tmp_path), 2, 1000)
    again.forget(paths[1])
    again.write(3, checkpoint.write)
    assert steps(tmp_path) == [1, 3]


@pytest.mark.parametrize("is_relative", [False, True])
def test_checkpoints_are_found_in_a_directory_that_was_moved(
    tmp_path: Path,
    checkpoint: tf.train.Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    is_relative: bool,
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = Path("runs/a") if is_relative else tmp_path / "runs/a"
    for step in (1, 2):
        CheckpointFiles(str(directory), 5, 1000).write(step, checkpoint.write)
    assert steps(directory) == [1, 2]
    moved = directory.rename(directory.with_name("b"))
    assert steps(moved) == [1, 2]
    CheckpointFiles(str(moved), 5, 1000).write(3, checkpoint.write)
    assert steps(moved) == [1, 2, 3]
