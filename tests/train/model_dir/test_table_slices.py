"""Large tables in checkpoints, which any number of shards and TensorFlow alone restore."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.train import sparse_model
from tests.train.sparse_model import ROWS, WIDTH, make_model, make_step

from phalanx.train.model_dir import table_slices
from phalanx.train.model_dir.table_slices import SharedFiles, restore_checkpoint, write_checkpoint
from phalanx.train.variables import row_transfer
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables

CPU = "/device:CPU:0"


@pytest.fixture(scope="module", autouse=True)
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_transfer, "CHUNK_BYTES", 7 * WIDTH * 4)
        patch.setattr(table_slices, "PART_BYTES", 20 * WIDTH * 4)
        yield


def place(shards: int) -> tuple[Any, Any]:
    """Return a checkpoint with new variables in so many shards, and these variables."""
    step, host_variables = make_step("adam")
    DeviceVariables.place(host_variables, [CPU] * shards, Clipping()).push()
    checkpoint = tf.train.Checkpoint(model=step.model, optimizer=host_variables.optimizer)
    checkpoint.save_counter.assign_add(1)
    return checkpoint, host_variables


def read(host_variables: Any) -> list[Any]:
    return [np.asarray(variable.numpy()) for variable in host_variables.all()]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Any]]:
    """A checkpoint of three shards, and the values in it."""
    path = str(tmp_path_factory.mktemp("saved") / "model.ckpt-1")
    checkpoint, host_variables = place(3)
    random = np.random.default_rng(1)
    for table in host_variables.described():
        for shard in table.shards:
            shard.assign(random.normal(size=shard.shape))
    write_checkpoint(checkpoint, path, SharedFiles())
    return path, read(host_variables)


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_any_number_of_shards_restores_the_same_rows(saved: Any, shards: int) -> None:
    path, wanted = saved
    checkpoint, host_variables = place(shards)
    restore_checkpoint(checkpoint, path)
    for found, value in zip(read(host_variables), wanted, strict=True):
        np.testing.assert_array_equal(found, value)


def test_tensorflow_alone_restores_whole_tables(saved: Any) -> None:
    path, wanted = saved
    shapes = dict(tf.train.list_variables(path))
    assert list(shapes.values()).count([ROWS, WIDTH]) == 6
    model = make_model("adam")
    tf.train.Checkpoint(model=model).restore(path).expect_partial()
    np.testing.assert_array_equal(model.get_layer("users").embeddings.numpy(), wanted[0])


def test_whole_table_of_an_older_checkpoint_is_restored(tmp_path: Path) -> None:
    checkpoint, host_variables = place(1)
    wanted = read(host_variables)
    path = checkpoint.write(str(tmp_path / "old"))
    restored, others = place(3)
    for table in others.described():
        for shard in table.shards:
            shard.assign(tf.zeros_like(shard))
    restore_checkpoint(restored, path)
    for found, value in zip(read(others), wanted, strict=True):
        np.testing.assert_array_equal(found, value)


def test_parts_are_bounded_and_no_temporary_file_remains(saved: Any) -> None:
    folder = Path(saved[0]).parent
    data = sorted(folder.glob("*.data-*"))
    assert len(data) > 10
    assert max(path.stat().st_size for path in data[1:]) <= 20 * WIDTH * 4
    assert {path.name.partition(".ckpt")[0] for path in folder.iterdir()} == {"model"}


def test_table_of_another_shape_is_refused(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_model, "ROWS", ROWS + 1)
    checkpoint, _ = place(2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        restore_checkpoint(checkpoint, saved[0])


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("change", ["update", "assign"])
def test_rows_that_change_while_they_are_written_are_saved_as_they_were(
    tmp_path: Path, shards: int, change: str
) -> None:
    step, host_variables = make_step("adam")
    variables = DeviceVariables.place(host_variables, [CPU] * shards, Clipping())
    variables.push()
    checkpoint = tf.train.Checkpoint(model=step.model, optimizer=host_variables.optimizer)
    checkpoint.save_counter.assign_add(1)
    wanted = [table.value.numpy() for table in host_variables.described()]

    def train_on() -> None:
        if change == "assign":
            for table in host_variables.described():
                table.assign(tf.ones(table.shape))
            variables.push()
        for store in variables.stores:
            for optimizer in store.row_optimizers.values():
                gradient = tf.IndexedSlices(tf.ones([3, WIDTH]), tf.constant([0, 5, 8], tf.int64))
                tf.function(optimizer.apply, autograph=False)(gradient)

    write_checkpoint(checkpoint, str(tmp_path / "model"), SharedFiles(), train_on)
    restored, others = place(1)
    restore_checkpoint(restored, str(tmp_path / "model"))
    for table, value in zip(others.described(), wanted, strict=True):
        np.testing.assert_array_equal(table.value, value)
    # Rows changed indeed, and nothing is kept any more.
    for table, value in zip(host_variables.described(), wanted, strict=True):
        assert not np.array_equal(np.concatenate([s.numpy() for s in table.shards]), value)
        assert not any(snapshot._is_open.numpy() for snapshot in table.snapshots)
