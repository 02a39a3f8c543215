"""Hooks that report on a run, each in a real run of one process."""

from __future__ import annotations

import logging
from pathlib import Path

import keras
import pytest
import tensorflow as tf
from tests.train.small_experiment import Line, make_points, train_line

import phalanx
from phalanx import hooks
from phalanx.train.model_dir.metrics_log import read_evaluations, read_training


def test_profiler_writes_a_profile_for_tensorboard(config: phalanx.RunConfig) -> None:
    train_line(config, hooks.ProfilerHook(hooks.At(2), steps=2))
    assert list(Path(str(config.model_dir)).glob("plugins/profile/*/*.xplane.pb"))


def test_summary_hook_writes_histograms_of_the_weights(config: phalanx.RunConfig) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train_line(config, hooks.SummaryHook(hooks.Every(steps=3), histograms=True))
    events = EventAccumulator(str(config.model_dir), {"tensors": 0})
    events.Reload()
    assert [event.step for event in events.Tensors("encoder/kernel")] == [3, 6]


def test_gradient_norm_is_logged_and_written_to_summaries(
    config: phalanx.RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("phalanx").propagate = True
    caplog.set_level(logging.INFO, "phalanx")
    hook = hooks.GradientNormHook(hooks.Every(steps=1), limit=1e-9)
    train_line(config, hook, train_steps=1, summary_steps=1, global_batch_size=64, seed=3)
    found = read_training(str(config.model_dir))[0].values["gradient_norm"]
    keras.utils.set_random_seed(3)
    model = Line().model(phalanx.Context())
    x, y = make_points()
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    expected = tf.linalg.global_norm(tape.gradient(loss, [v.value for v in model.variables]))
    assert found == pytest.approx(float(expected), rel=1e-4)
    assert "gradient norm" in caplog.text
    assert "larger than 1e-09" in caplog.text
    assert "gradient_norm" not in read_evaluations(str(config.model_dir))[-1].values


def test_logging_hook_logs_the_means_since_the_last_line(
    config: phalanx.RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("phalanx").propagate = True
    caplog.set_level(logging.INFO, "phalanx")
    losses: list[float] = []
    watch = hooks.ActionHook(hooks.Every(steps=1), lambda session: losses.append(session.last_loss))
    train_line(config, watch, log_steps=3)
    lines = [text for text in caplog.messages if text.startswith("step ")]
    assert [line.partition(": ")[0] for line in lines] == ["step 3 of 6", "step 6 of 6"]
    logged = float(lines[1].partition("loss = ")[2].partition(",")[0])
    assert logged == pytest.approx(sum(losses[3:]) / 3, rel=1e-3)


def test_progress_bar_reaches_the_last_step(config: phalanx.RunConfig) -> None:
    hook = hooks.ProgressBarHook()
    train_line(config, hook)
    assert hook._progress is not None
    (bar,) = hook._progress.tasks
    assert (bar.completed, bar.total) == (6, 6)
    assert not hook._progress.live.is_started
