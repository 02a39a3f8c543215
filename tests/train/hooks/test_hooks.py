"""Each hook, in a real run of one process."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from tests.train.small_experiment import Line, make_points

import phalanx
from phalanx import hooks
from phalanx.errors import ConfigurationError
from phalanx.train.model_dir.metrics_log import read_evaluations, read_training


@pytest.fixture
def config(tmp_path: Path) -> phalanx.RunConfig:
    folder = str(tmp_path / "run")
    return phalanx.RunConfig(model_dir=folder, train_steps=6, global_batch_size=16, seed=1)


def train(config: phalanx.RunConfig, *more: hooks.Hook, **settings: Any) -> phalanx.Result:
    return phalanx.run(Line(), dataclasses.replace(config, **settings), hooks=more)


def test_an_action_is_called_when_it_is_due(config: phalanx.RunConfig) -> None:
    seen: dict[str, list[int]] = {"every": [], "at": []}
    train(
        config,
        hooks.ActionHook(hooks.Every(steps=2), lambda session: seen["every"].append(session.step)),
        hooks.ActionHook(hooks.At(1, 5), lambda session: seen["at"].append(session.step)),
    )
    assert seen == {"every": [2, 4, 6], "at": [1, 5]}


def test_a_hook_of_three_lines(config: phalanx.RunConfig) -> None:
    class HalveTheRate(hooks.PeriodicHook):
        def act(self, session: Any) -> None:
            session.learning_rate /= 2

    rates: dict[int, float] = {}
    watch = hooks.ActionHook(
        hooks.Every(steps=1), lambda session: rates.update({session.step: session.learning_rate})
    )
    train(config, watch, HalveTheRate(hooks.At(3)))
    assert rates[2] == pytest.approx(0.05)
    assert rates[4] == pytest.approx(0.025)
    # A run that goes on counts from there.
    train(config, watch, HalveTheRate(hooks.At(3)), train_steps=8)
    assert rates[8] == pytest.approx(0.025)


def test_stop_at_time_ends_the_run_with_a_final_checkpoint(config: phalanx.RunConfig) -> None:
    started = time.monotonic()
    result = train(config, hooks.StopAtTimeHook(1.0), train_steps=10**9)
    assert time.monotonic() - started >= 1
    assert result.step > 0
    assert result.checkpoint.endswith(f"model.ckpt-{result.step}")
    assert read_evaluations(str(config.model_dir))[-1].step == result.step


def test_every_goes_by_steps_and_by_seconds() -> None:
    every = hooks.Every(steps=10, seconds=60)
    every.start(0, 0.0)
    times = [(9, 59.0), (9, 61.0), (10, 62.0), (11, 121.0), (11, 122.0)]
    assert [every.is_due(*time) for time in times] == [False, True, True, False, True]
    with pytest.raises(ConfigurationError, match=r"Every\(steps=0\): it must be more than 0"):
        hooks.Every(steps=0)


def test_a_hook_may_set_the_last_step(config: phalanx.RunConfig) -> None:
    enough = hooks.ActionHook(hooks.At(2), lambda session: session.set_limit(3))
    assert train(config, enough, train_steps=10**9).step == 3


def test_one_evaluation_of_the_last_step_is_enough(config: phalanx.RunConfig) -> None:
    train(config, hooks.EvaluationHook(hooks.Every(steps=4)))
    assert [found.step for found in read_evaluations(str(config.model_dir))] == [4, 6]


def test_stop_at_time_wants_time() -> None:
    with pytest.raises(ConfigurationError, match="more than 0"):
        hooks.StopAtTimeHook(0)


def test_the_profiler_writes_what_tensorboard_opens(config: phalanx.RunConfig) -> None:
    train(config, hooks.ProfilerHook(hooks.At(2), steps=2))
    assert list(Path(str(config.model_dir)).glob("plugins/profile/*/*.xplane.pb"))


def test_early_stopping_waits_for_its_patience(config: phalanx.RunConfig) -> None:
    hook = hooks.EarlyStoppingHook("mae", patience=2, min_delta=100)
    result = train(config, hook, train_steps=1000, eval_every_steps=5)
    # The first evaluation is the best, two more bring nothing.
    assert result.step == 15


def test_early_stopping_lets_a_run_go_on_that_gets_better(config: phalanx.RunConfig) -> None:
    hook = hooks.EarlyStoppingHook("loss", patience=1)
    assert train(config, hook, train_steps=30, eval_every_steps=10).step == 30


def test_early_stopping_names_the_metrics_there_are(config: phalanx.RunConfig) -> None:
    with pytest.raises(ConfigurationError, match="'f1', but the evaluation has loss, mae"):
        train(config, hooks.EarlyStoppingHook("f1"), eval_every_steps=2)


def test_early_stopping_sees_what_an_evaluator_wrote(config: phalanx.RunConfig) -> None:
    folder = Path(str(config.model_dir), "eval")
    folder.mkdir(parents=True)
    lines = [f'{{"step": {n}, "time": {n}, "mae": {1 + n}}}\n' for n in range(4)]
    (folder / "eval.jsonl").write_text("".join(lines) + '{"step": 9, "ti')
    result = train(config, hooks.EarlyStoppingHook("mae", patience=3))
    assert result.step == 0


def test_histograms_of_the_weights_are_written(config: phalanx.RunConfig) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(config, hooks.SummaryHook(hooks.Every(steps=3), histograms=True))
    events = EventAccumulator(str(config.model_dir), {"tensors": 0})
    events.Reload()
    assert [event.step for event in events.Tensors("encoder/kernel")] == [3, 6]


def test_the_best_model_so_far_is_exported_and_old_ones_go(config: phalanx.RunConfig) -> None:
    hook = hooks.BestExporterHook("mae", keep=2)
    train(config, hook, train_steps=20, eval_every_steps=5)
    there = sorted(Path(str(config.model_dir), "export", "best").iterdir())
    assert [path.name for path in there] == ["3", "4"]
    about = json.loads((there[-1] / "assets.extra/phalanx.json").read_text())
    assert about["step"] == 20
    assert about["evaluation"]["mae"] == read_evaluations(str(config.model_dir))[-1].values["mae"]


def test_what_is_no_better_is_not_exported(config: phalanx.RunConfig) -> None:
    hook = hooks.BestExporterHook("mae", best="max")
    train(config, hook, train_steps=20, eval_every_steps=10)
    assert [path.name for path in Path(str(config.model_dir), "export/best").iterdir()] == ["1"]


def test_the_norm_of_the_gradients_is_logged_and_drawn(
    config: phalanx.RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("phalanx").propagate = True
    caplog.set_level(logging.INFO, "phalanx")
    hook = hooks.GradientNormHook(hooks.Every(steps=1), limit=1e-9)
    train(config, hook, train_steps=1, summary_steps=1, global_batch_size=64, seed=3)
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
