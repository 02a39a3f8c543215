"""Incremental checkpoints: of large tables, the rows that changed since a full checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.train.sparse_model import WIDTH, make_data, make_model, make_step

import phalanx
from phalanx.train.model_dir import checkpoint as checkpoint_module
from phalanx.train.model_dir import intact
from phalanx.train.model_dir.checkpoint_files import CheckpointFiles
from phalanx.train.model_dir.intact import find_intact, verify_checkpoint
from phalanx.train.model_dir.layout import list_checkpoints, step_of
from phalanx.train.model_dir.table_changes import find_base, find_changes, read_tensor
from phalanx.train.model_dir.table_slices import SharedFiles, restore_checkpoint, write_checkpoint
from phalanx.train.model_dir.warm_start import open_source, warm_start
from phalanx.train.variables import row_transfer
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables

CPU = "/device:CPU:0"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_transfer, "CHUNK_BYTES", 7 * WIDTH * 4)


def place(shards: int) -> tuple[Any, Any, Any]:
    """Return a checkpoint, new variables in so many shards, and a function that trains them."""
    step, host_variables = make_step("adam")
    for table in host_variables.described():
        table.tracks_changes = True
    variables = DeviceVariables.place(host_variables, [CPU] * shards, Clipping())
    variables.push()
    checkpoint = tf.train.Checkpoint(model=step.model, optimizer=host_variables.optimizer)
    checkpoint.save_counter.assign_add(1)

    @tf.function  # type: ignore[untyped-decorator]
    def update(batch: Any) -> None:
        buffers, state = variables.read(), variables.read_state()
        variables.apply(step.train(variables, buffers, state, batch, 0, 0).gradients)

    def train(batch: Any) -> None:
        update(batch)
        variables.pull()

    return checkpoint, host_variables, train


def read(host_variables: Any) -> list[Any]:
    return [np.asarray(variable.numpy()) for variable in host_variables.all()]


@pytest.mark.parametrize(
    "shards", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(5, marks=pytest.mark.slow)]
)
def test_any_number_of_shards_replays_the_rows_that_changed(tmp_path: Path, shards: int) -> None:
    saved, host_variables, update = place(3)
    base, delta = str(tmp_path / "model.ckpt-1"), str(tmp_path / "model.ckpt-2")
    batches = list(make_data(phalanx.Context(batch_size=3)))
    update(batches[0])
    for table in host_variables.described():
        table.clear_changes()
    write_checkpoint(saved, base, SharedFiles())
    update(batches[1])
    wanted = read(host_variables)
    copied: list[int] = []

    def train_on() -> None:
        copied.append(1)
        update(batches[2])

    write_checkpoint(saved, delta, SharedFiles(), train_on, base)
    assert copied == [1]
    assert find_base(delta) == base
    assert find_base(base) is None
    verify_checkpoint(delta)

    restored, others, _ = place(shards)
    restore_checkpoint(restored, delta)
    for found, value in zip(read(others), wanted, strict=True):
        np.testing.assert_array_equal(found, value)
    changes = find_changes(delta)
    assert len(changes) == 6  # Two tables with two slots each.
    reader = tf.train.load_checkpoint(delta)
    for key, names in changes.items():
        rows = np.concatenate([reader.get_tensor(f"{name}/rows") for name in names])
        assert 0 < len(rows) == len(set(rows)) <= 6
        whole = read_tensor(delta, key)
        assert any(np.array_equal(table.numpy(), whole) for table in others.described())


def train(directory: Path, *others: Any, steps: int = 12, **settings: Any) -> Any:
    settings = {"keep_max": 3, "full_save_every": 3, **settings}
    config = phalanx.RunConfig(
        model_dir=str(directory), train_steps=steps, global_batch_size=4, save_steps=2, **settings
    )
    experiment = phalanx.Experiment(
        model=lambda: make_model(keras.optimizers.Adam(0.05)), train_data=make_data
    )
    return phalanx.run(experiment, config, hooks=list(others))


def weights(result: Any) -> list[Any]:
    return [
        np.asarray(v.numpy()) for v in (*result.model.variables, *result.model.optimizer.variables)
    ]


@pytest.mark.parametrize("in_background", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_run_continues_from_an_incremental_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, in_background: bool
) -> None:
    caplog.set_level(logging.INFO)
    whole = train(tmp_path / "whole", steps=14, save_in_background=in_background)
    first = train(tmp_path / "parts", steps=10, save_in_background=in_background)
    # Saved at 0, 6 (full) and at 2, 4, 8, 10.
    assert "saved step 10" in caplog.text
    assert "with the rows that changed since step 6" in caplog.text
    assert find_base(first.checkpoint) == str(tmp_path / "parts" / "model.ckpt-6")
    kept = [step_of(path) for path in list_checkpoints(str(tmp_path / "parts"))]
    assert kept == [6, 8, 10]
    second = train(tmp_path / "parts", steps=14, save_in_background=in_background)
    # The first checkpoint of a process is full, and has what the others need.
    assert find_base(str(tmp_path / "parts" / "model.ckpt-12")) is None
    for found, value in zip(weights(second), weights(whole), strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-7)


def test_base_is_kept_as_long_as_it_is_needed(tmp_path: Path) -> None:
    train(tmp_path, steps=4, keep_max=1)
    assert [step_of(path) for path in list_checkpoints(str(tmp_path))] == [0, 4]
    train(tmp_path, steps=6, keep_max=1)
    assert [step_of(path) for path in list_checkpoints(str(tmp_path))] == [6]
    assert not list(tmp_path.glob("model.ckpt-0.*")) + list(tmp_path.glob("model.ckpt-4.*"))


@pytest.mark.slow
def test_damaged_base_makes_readers_use_an_older_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, steps=8, keep_max=9)
    for path in tmp_path.glob("model.ckpt-6.data-*"):
        path.write_bytes(b"damaged")
    intact._verified.clear()
    assert find_intact(str(tmp_path)) == str(tmp_path / "model.ckpt-4")
    result = train(tmp_path, steps=9, keep_max=9)
    assert "passing over a checkpoint" in caplog.text
    assert result.step == 9


@pytest.mark.slow
def test_failed_save_is_followed_by_a_full_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    verify, failures = intact.verify_checkpoint, [OSError("the disk is full")]

    def fail_once(path: str, sliced: Any) -> None:
        if failures and "ckpt-6" in path:
            raise failures.pop()
        verify(path, sliced)

    monkeypatch.setattr(checkpoint_module, "verify_checkpoint", fail_once)
    train(tmp_path, steps=8, keep_max=9)
    assert "model.ckpt-6 cannot be written: the disk is full" in caplog.text
    saved = {step_of(path): find_base(path) for path in list_checkpoints(str(tmp_path))}
    assert next(base for step, base in saved.items() if step >= 6) is None


def test_interrupted_save_leaves_the_checkpoint_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, host_variables, update = place(2)
    shared, directory = SharedFiles(), str(tmp_path)
    batches = list(make_data(phalanx.Context(batch_size=3)))
    rename, renames = tf.io.gfile.rename, [0]

    class Died(BaseException):
        pass

    def die(*arguments: Any, **options: Any) -> None:
        if renames[0] == fails_at:
            raise Died
        renames[0] += 1
        rename(*arguments, **options)

    def save(step: int, base: str | None) -> str:
        files = CheckpointFiles(directory, keep_max=1, keep_every_hours=1)
        return files.write(
            step, lambda prefix: write_checkpoint(saved, prefix, shared, None, base), base=base
        )

    base = save(1, None)
    for table in host_variables.described():
        table.clear_changes()
    values = {base: read(host_variables)}
    step, is_complete, fails_at = 2, False, 0
    monkeypatch.setattr(tf.io.gfile, "rename", die)
    while not is_complete:
        renames[0] = 0
        update(batches[step % len(batches)])
        values[str(tmp_path / f"model.ckpt-{step}")] = read(host_variables)
        try:
            save(step, base)
            is_complete = True
        except Died:
            fails_at, step = fails_at + 1, step + 1
        found = find_intact(directory)
        assert found == (base if not is_complete else str(tmp_path / f"model.ckpt-{step}"))
        restored, others, _ = place(3)
        restore_checkpoint(restored, found)
        for variable, value in zip(read(others), values[found], strict=True):
            np.testing.assert_allclose(variable, value, rtol=1e-6)
    assert fails_at > 2, "the files of a checkpoint and the list were renamed"


def test_warm_start_reads_an_incremental_checkpoint(tmp_path: Path) -> None:
    result = train(tmp_path, steps=4)
    assert find_base(result.checkpoint) is not None
    model = make_model("adam")
    with open_source(result.checkpoint) as source:
        found = {name: source.read(name) for name in source.shapes}
    for variable in result.model.variables:
        np.testing.assert_allclose(found[variable.path], variable.numpy(), rtol=1e-6)
    named = {variable.path: variable for variable in model.variables}
    warm_start(named, model, result.checkpoint)
    for variable, trained in zip(model.variables, result.model.variables, strict=True):
        np.testing.assert_allclose(variable.numpy(), trained.numpy(), rtol=1e-6)
