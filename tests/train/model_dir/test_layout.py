"""Look-ups of checkpoints in a model_dir."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tests.train.small_experiment import Line

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.model_dir.layout import (
    checkpoint_name,
    choose_checkpoints,
    latest_checkpoint,
    list_checkpoints,
    step_of,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = phalanx.RunConfig(
        model_dir=str(tmp_path_factory.mktemp("run")), train_steps=40, save_steps=20,
        global_batch_size=16, eval_every_steps=20,
    )  # fmt: skip
    return phalanx.run(Line(), config)


def test_choose_checkpoint_by_last_best_step_or_name(run: Any, tmp_path: Path) -> None:
    assert next(iter(choose_checkpoints(run.model_dir))).endswith("-40")
    assert next(iter(choose_checkpoints(run.model_dir, "best", "loss", "max"))).endswith("-20")
    assert next(iter(choose_checkpoints(run.model_dir, "best", "mae"))).endswith("-40")
    assert next(iter(choose_checkpoints(run.model_dir, "model.ckpt-0"))).endswith("-0")
    assert next(iter(choose_checkpoints(run.model_dir, "20"))).endswith("-20")
    with pytest.raises(ConfigurationError, match="there are steps 0, 20, 40"):
        choose_checkpoints(run.model_dir, "model.ckpt-7")
    for which in ("7", "weights"):
        with pytest.raises(ConfigurationError, match="there is no checkpoint"):
            choose_checkpoints(run.model_dir, which)
    with pytest.raises(ConfigurationError, match="there are loss, mae"):
        choose_checkpoints(run.model_dir, "best", "f1")
    with pytest.raises(ConfigurationError, match="has the run saved yet"):
        choose_checkpoints(str(tmp_path))


def save(directory: Path, *steps: int) -> None:
    manager = tf.train.CheckpointManager(
        tf.train.Checkpoint(n=tf.Variable(0)), str(directory), 9, checkpoint_name="model.ckpt"
    )
    for step in steps:
        manager.save(checkpoint_number=step)


def test_deleted_checkpoints_are_not_listed(tmp_path: Path) -> None:
    assert list_checkpoints(str(tmp_path)) == []
    assert latest_checkpoint(str(tmp_path)) is None
    save(tmp_path, 1, 2, 3)
    for file in tmp_path.glob("model.ckpt-3.*"):
        file.unlink()
    assert [step_of(path) for path in list_checkpoints(str(tmp_path))] == [1, 2]
    assert latest_checkpoint(str(tmp_path)) == f"{tmp_path}/{checkpoint_name(2)}"


def test_the_newest_checkpoint_is_the_one_that_the_list_names(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1"\n')
    assert latest_checkpoint(str(tmp_path)) == f"{tmp_path}/model.ckpt-1"
    assert list_checkpoints(str(tmp_path)) == [f"{tmp_path}/model.ckpt-1"]
