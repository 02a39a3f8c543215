"""Large tables are saved while training goes on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.train.sparse_model import make_data, make_model

import phalanx
from phalanx import hooks
from phalanx.errors import SaveError
from phalanx.train.model_dir import checkpoint, checkpoint_files, intact
from phalanx.train.model_dir.layout import CHECKPOINT_LIST, list_checkpoints, step_of
from phalanx.train.variables import row_transfer


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_transfer, "CHUNK_BYTES", 100)


def train(directory: Path, *others: Any, steps: int = 6, **settings: Any) -> Any:
    config = phalanx.RunConfig(
        model_dir=str(directory), train_steps=steps, global_batch_size=20, save_steps=2, **settings
    )
    experiment = phalanx.Experiment(
        model=lambda: make_model(keras.optimizers.Adam(0.05)), train_data=make_data
    )
    return phalanx.run(experiment, config, hooks=list(others))


def read(directory: Path, step: int) -> dict[str, Any]:
    reader = tf.train.load_checkpoint(str(directory / f"model.ckpt-{step}"))
    names = [n for n in reader.get_variable_to_shape_map() if n.endswith("VARIABLE_VALUE")]
    return {name: np.asarray(reader.get_tensor(name)) for name in names}


def test_each_checkpoint_has_the_rows_of_its_step(tmp_path: Path) -> None:
    saved: list[int] = []

    class NoteSaves(hooks.Hook):
        def on_save(self, session: Any, path: str) -> None:
            assert Path(f"{path}.index").exists()
            saved.append(step_of(path))

    train(tmp_path / "background", NoteSaves())
    train(tmp_path / "blocking", save_in_background=False)
    assert saved == [0, 2, 4, 6]
    for step in saved:
        found, wanted = read(tmp_path / "background", step), read(tmp_path / "blocking", step)
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


def test_failure_in_the_background_is_noticed_and_the_save_is_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    verify, failures = intact.verify_checkpoint, [OSError("the disk is full")]

    def fail_once(path: str, sliced: Any) -> None:
        if failures and "ckpt-2" in path:
            raise failures.pop()
        verify(path, sliced)

    monkeypatch.setattr(checkpoint, "verify_checkpoint", fail_once)
    train(tmp_path)
    assert "model.ckpt-2 cannot be written: the disk is full" in caplog.text
    assert [step_of(path) for path in list_checkpoints(str(tmp_path))][-1] == 6
    assert not failures


def test_run_fails_if_nothing_can_be_written_for_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str, sliced: Any) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(checkpoint, "verify_checkpoint", fail)
    with pytest.raises(SaveError, match="the disk is full"):
        train(tmp_path, save_retry_seconds=0.01)
    assert not list(tmp_path.glob("model.ckpt-*"))
    assert not (tmp_path / checkpoint_files._ASIDE).exists()


def test_run_that_stops_before_any_rename_keeps_its_newest_complete_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, copies = tmp_path / "run", tmp_path / "copies"
    newest: list[int] = []
    rename_file = tf.io.gfile.rename

    def copy_before_rename(source: str, target: str, overwrite: bool = False) -> None:
        listed = [step_of(path) for path in list_checkpoints(str(run))]
        if listed and checkpoint_files._ASIDE in source:
            newest.append(listed[-1])
            copy = copies / str(len(newest))
            shutil.copytree(run, copy, ignore=shutil.ignore_patterns(".phalanx-lease"))
            # TensorFlow lists absolute paths.
            if (copy / CHECKPOINT_LIST).exists():
                listed_paths = (copy / CHECKPOINT_LIST).read_text().replace(str(run), str(copy))
                (copy / CHECKPOINT_LIST).write_text(listed_paths)
        rename_file(source, target, overwrite)

    with monkeypatch.context() as patch:
        patch.setattr(tf.io.gfile, "rename", copy_before_rename)
        train(run, steps=4)
    assert (run / CHECKPOINT_LIST).exists()
    # The list of the first save, then two data files, the index and the list of two more.
    assert newest == [0, 0, 0, 0, 0, 2, 2, 2, 2]
    for number, step in enumerate(newest, start=1):
        copy = copies / str(number)
        assert intact.find_intact(str(copy)) == str(copy / f"model.ckpt-{step}")
        found, wanted = read(copy, step), read(run, step)
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
    last = copies / str(len(newest))
    train(last, steps=4)
    found, wanted = read(last, 4), read(run, 4)
    del wanted["save_counter/.ATTRIBUTES/VARIABLE_VALUE"]
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)
