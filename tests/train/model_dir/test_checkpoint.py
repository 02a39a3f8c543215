"""Checkpoints and the status that is written with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.train.small_experiment import Line

from phalanx import RunConfig
from phalanx.errors import ConfigurationError
from phalanx.train.loop.position import Position
from phalanx.train.model_dir.checkpoint import Checkpoints, check_directory
from phalanx.train.model_dir.status import State, read_status
from phalanx.train.runtime.task_data import make_train_data
from phalanx.train.runtime.topology import make_context
from phalanx.train.step.step_function import StepFunction


def open_checkpoints(directory: Path, batch_size: int = 16) -> Checkpoints:
    context = make_context(RunConfig(global_batch_size=batch_size), 1, 1, 0)
    step = StepFunction(Line(), context)
    step.build(make_train_data(Line(), context).element_spec, None)
    variables = step.make_host_variables()
    return Checkpoints(str(directory), step, variables, global_batch_size=batch_size)


def test_restore_returns_the_position_in_batches_of_the_current_size(tmp_path: Path) -> None:
    checkpoints = open_checkpoints(tmp_path)
    assert checkpoints.latest is None
    assert checkpoints.restore()[0] == 0
    path = checkpoints.save(7, Position(epoch=1, batches=3, examples=48))
    assert checkpoints.latest == path == f"{tmp_path}/model.ckpt-7"
    for batch_size, batches in ((16, 3), (8, 6)):
        step, position = open_checkpoints(tmp_path, batch_size).restore()
        assert (step, position.epoch, position.batches, position.examples) == (7, 1, batches, 48)


def read_step(directory: Path) -> tuple[State, int]:
    status = read_status(str(directory))
    assert status is not None
    return status.state, status.step


def test_a_heartbeat_is_written_every_15_seconds(tmp_path: Path) -> None:
    checkpoints = open_checkpoints(tmp_path)
    checkpoints.heartbeat(1, now=100.0)
    checkpoints.heartbeat(2, now=114.0)
    assert read_step(tmp_path) == (State.RUNNING, 1)
    checkpoints.heartbeat(3, now=115.0)
    assert read_step(tmp_path) == (State.RUNNING, 3)
    checkpoints.mark_done(4)
    assert read_step(tmp_path) == (State.DONE, 4)


def test_check_directory_creates_the_directory_and_leaves_no_file(tmp_path: Path) -> None:
    assert check_directory(str(tmp_path / "run")) == str(tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())
    for directory, reason in ((None, "model_dir is not set"), ("s3://a/b", "cannot write to s3")):
        with pytest.raises(ConfigurationError, match=reason):
            check_directory(directory)
