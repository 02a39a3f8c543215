"""A run that diverges goes back to a checkpoint, and on with the data behind the bad batches."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.train.small_experiment import Line

import phalanx
from phalanx import hooks
from phalanx.errors import DivergenceError
from phalanx.train.loop.rollbacks import Rollbacks
from phalanx.train.loop.session import Session


class BadBatches(Line):
    """Some batches, by their number in the whole training, have targets times a factor."""

    def __init__(self, *bad: int, factor: float = float("nan")) -> None:
        super().__init__()
        self._bad = bad
        self._factor = factor

    def train_data(self, context: phalanx.Context) -> Any:
        data = super().train_data(context).unbatch().repeat().batch(16).enumerate()
        bad = tf.constant(self._bad, tf.int64)
        return data.map(
            lambda n, xy: (xy[0], tf.where(tf.reduce_any(n == bad), self._factor * xy[1], xy[1]))
        )


class Watch(hooks.Hook):
    """Notes what hooks see: each step, the examples that were read, and rollbacks."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.rollbacks: list[int] = []
        self.examples = 0.0

    def due(self, step: int) -> int:
        return step + 1

    def after_step(self, session: Session) -> None:
        self.steps.append(session.step)
        self.examples = session.position.examples

    def on_rollback(self, session: Session) -> None:
        self.rollbacks.append(session.step)


def test_run_goes_on_behind_a_bad_batch(
    config: phalanx.RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch()
    with caplog.at_level(logging.INFO, "phalanx"):
        result = phalanx.run(
            BadBatches(12), config.replace(train_steps=20, save_steps=5, log_steps=5), hooks=[watch]
        )
    assert result.step == 20
    # Batch 12 is step 13, after the checkpoint of step 10.
    assert watch.rollbacks == [10]
    assert watch.steps == [*range(1, 13), *range(11, 21)]
    # 20 steps, and 3 that were lost: the data is not read again.
    assert watch.examples == 23 * 16
    assert all(np.isfinite(weight).all() for weight in result.model.get_weights())
    assert "rolled back to step 10, for the 1. time: the loss is nan at step 13" in caplog.text
    means = [line for line in caplog.messages if line.startswith("step ")]
    assert [line.split(":")[0] for line in means] == [f"step {n} of 20" for n in (5, 10, 15, 20)]
    assert "nan" not in " ".join(means)
    # The steps at which hooks are due count from the checkpoint on again.
    saved = {path.name for path in Path(str(config.model_dir)).glob("model.ckpt-*.index")}
    assert {"model.ckpt-15.index", "model.ckpt-20.index"} <= saved


def test_restarted_run_reads_on_where_a_run_with_a_rollback_ended(
    config: phalanx.RunConfig,
) -> None:
    class First(hooks.Hook):
        def begin(self, session: Session) -> None:
            seen.append(session.position.batches)

    seen: list[int] = []
    for steps in (15, 16):
        settings = config.replace(train_steps=steps, save_steps=5, steps_per_call=1)
        phalanx.run(BadBatches(12), settings, hooks=[First()])
    assert seen == [0, 15 + 3]


def test_weights_that_are_not_finite_are_rolled_back_when_they_are_to_be_saved(
    config: phalanx.RunConfig,
) -> None:
    def spoil(session: Session) -> None:
        if not watch.rollbacks:
            session.pull()
            session.variables["head/bias"].assign([np.nan])
            session.push()

    watch = Watch()
    settings = config.replace(train_steps=12, save_steps=3, steps_per_call=1)
    result = phalanx.run(Line(), settings, hooks=[watch, hooks.ActionHook(hooks.At(8), spoil)])
    assert watch.rollbacks == [6]
    assert result.step == 12
    assert all(np.isfinite(weight).all() for weight in result.model.get_weights())


def test_blown_up_loss_goes_back_further_when_a_checkpoint_was_bad(
    config: phalanx.RunConfig,
) -> None:
    def spoil(session: Session) -> None:
        if not watch.rollbacks:
            session.pull()
            for variable in session.variables.values():
                variable.assign(variable * 1e4)
            session.push()

    watch = Watch()
    settings = config.replace(train_steps=30, save_steps=5, steps_per_call=1, max_loss_ratio=1000)
    # The checkpoint of step 15 has the changed weights, whose loss nobody has seen yet.
    spoils = hooks.ActionHook(hooks.At(15), spoil)
    result = phalanx.run(Line(), settings, hooks=[watch, spoils, SaveAt(15)])
    assert watch.rollbacks == [15, 10]
    assert result.step == 30


class SaveAt(hooks.Hook):
    """Saves a step again, with what other hooks have changed."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._is_done = False

    def after_step(self, session: Session) -> None:
        if session.step == self._step and not self._is_done:
            self._is_done = True
            session.save()


def test_run_that_keeps_diverging_fails_with_the_reason(config: phalanx.RunConfig) -> None:
    watch = Watch()
    with pytest.raises(DivergenceError, match=r"nan at step 1: .* 2 times, as often as"):
        phalanx.run(
            BadBatches(*range(100)), config.replace(max_rollbacks=2, train_steps=9), hooks=[watch]
        )
    assert watch.rollbacks == [0, 0]


def test_epochs_end_with_the_data_in_spite_of_a_rollback(
    config: phalanx.RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    class Finite(BadBatches):
        def train_data(self, context: phalanx.Context) -> Any:
            return super().train_data(context).take(8)

    settings = config.replace(train_steps=None, epochs=3, save_steps=3, resume_data=True)
    with caplog.at_level(logging.INFO, "phalanx"):
        result = phalanx.run(Finite(4), settings)
    # Each pass of 8 batches has a bad one, and goes back to the checkpoint before it.
    assert "epoch 3: loss" in caplog.text and "nan" not in [
        line for line in caplog.messages if line.startswith("epoch")
    ]
    assert 3 * 8 - 3 * 3 <= result.step < 3 * 8


def test_rollbacks_pass_over_one_more_checkpoint_until_another_is_saved() -> None:
    rollbacks = Rollbacks(4)
    error = DivergenceError("the loss is nan")
    assert [rollbacks.begin(error) for _ in range(2)] == [0, 1]
    rollbacks.note_saved()
    assert [rollbacks.begin(error) for _ in range(2)] == [0, 1]
    with pytest.raises(DivergenceError, match="has gone back to a checkpoint 4 times"):
        rollbacks.begin(error)
