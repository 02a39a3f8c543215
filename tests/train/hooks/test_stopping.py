"""Hooks that end a run, each in a real run of one process."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from tests.train.small_experiment import Line, train_line

import phalanx
from phalanx import hooks
from phalanx.errors import ConfigurationError, TrainingError
from phalanx.train.model_dir.metrics_log import read_evaluations


def test_stop_at_time_ends_the_run_with_a_final_checkpoint(config: phalanx.RunConfig) -> None:
    started = time.monotonic()
    result = train_line(config, hooks.StopAtTimeHook(1.0), train_steps=10**9)
    assert time.monotonic() - started >= 1
    assert result.step > 0
    assert result.checkpoint.endswith(f"model.ckpt-{result.step}")
    assert read_evaluations(str(config.model_dir))[-1].step == result.step


def test_stop_at_time_rejects_zero_seconds() -> None:
    with pytest.raises(ConfigurationError, match="more than 0"):
        hooks.StopAtTimeHook(0)


def test_early_stopping_waits_for_its_patience(config: phalanx.RunConfig) -> None:
    hook = hooks.EarlyStoppingHook("mae", patience=2, min_delta=100)
    result = train_line(config, hook, train_steps=1000, eval_every_steps=5)
    # The first evaluation is the best, and two more do not improve it.
    assert result.step == 15


def test_early_stopping_continues_while_the_metric_improves(config: phalanx.RunConfig) -> None:
    hook = hooks.EarlyStoppingHook("loss", patience=1)
    assert train_line(config, hook, train_steps=30, eval_every_steps=10).step == 30


def test_early_stopping_lists_the_available_metrics(config: phalanx.RunConfig) -> None:
    with pytest.raises(ConfigurationError, match="'f1', but the evaluation has loss, mae"):
        train_line(config, hooks.EarlyStoppingHook("f1"), eval_every_steps=2)


def test_early_stopping_reads_the_evaluations_of_an_evaluator(config: phalanx.RunConfig) -> None:
    folder = Path(str(config.model_dir), "eval")
    folder.mkdir(parents=True)
    lines = [f'{{"step": {n}, "time": {n}, "mae": {1 + n}}}\n' for n in range(4)]
    (folder / "eval.jsonl").write_text("".join(lines) + '{"step": 9, "ti')
    result = train_line(config, hooks.EarlyStoppingHook("mae", patience=3))
    assert result.step == 0


def test_nan_loss_fails_the_run_before_it_is_saved(config: phalanx.RunConfig) -> None:
    class NanLoss(Line):
        def model(self, context: phalanx.Context) -> Any:
            model = super().model(context)
            model.compile("sgd", lambda y, predicted: predicted * float("nan"))
            return model

    with pytest.raises(TrainingError, match="the loss is nan at step 1"):
        phalanx.run(NanLoss(), config.replace(max_rollbacks=0))
    saved = Path(str(config.model_dir)).glob("model.ckpt-*.index")
    assert [path.name for path in saved] == ["model.ckpt-0.index"]


def test_weights_that_are_not_finite_are_not_saved(config: phalanx.RunConfig) -> None:
    class NanGradient(Line):
        def model(self, context: phalanx.Context) -> Any:
            model = super().model(context)
            # The square root of 0 is finite, and its gradient is not.
            model.compile("sgd", lambda y, predicted: keras.ops.sqrt(0.0 * predicted))
            return model

    with pytest.raises(TrainingError, match=r"encoder/kernel has values that are NaN .* at step 1"):
        phalanx.run(NanGradient(), config.replace(save_steps=1, max_rollbacks=0))
    saved = Path(str(config.model_dir)).glob("model.ckpt-*.index")
    assert [path.name for path in saved] == ["model.ckpt-0.index"]


def test_a_loss_that_blows_up_fails_the_run_before_it_is_saved(config: phalanx.RunConfig) -> None:
    class BlowUp(Line):
        def train_data(self, context: phalanx.Context) -> Any:
            # From the batch 20 on, the targets are a hundred times larger.
            data = super().train_data(context).unbatch().repeat().batch(16).enumerate()
            return data.map(lambda n, xy: (xy[0], tf.where(n < 20, xy[1], 100 * xy[1])))

    config = dataclasses.replace(
        config, train_steps=40, save_steps=5, steps_per_call=1, max_rollbacks=0
    )
    with pytest.raises(TrainingError, match="the loss has blown up at step 21: lower the learning"):
        phalanx.run(BlowUp(), dataclasses.replace(config, max_loss_ratio=100))
    saved = Path(str(config.model_dir)).glob("model.ckpt-*.index")
    assert max((path.name for path in saved), key=lambda n: (len(n), n)) == "model.ckpt-20.index"
    with pytest.raises(ConfigurationError, match="set it to more than 1"):
        train_line(config, max_loss_ratio=0.5)
