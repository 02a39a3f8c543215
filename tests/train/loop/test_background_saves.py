"""Large tables are saved while training goes on."""

from __future__ import annotations

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
from phalanx.train.model_dir.layout import list_checkpoints, step_of
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
