"""The checkpoint evaluator: evaluates each checkpoint of a run, always including the last."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
from tests.train.small_experiment import Line

import phalanx
from phalanx.errors import ConfigurationError, PeerError, TrainingError
from phalanx.train.loop.checkpoint_evaluator import (
    WatchOptions,
    evaluate_checkpoints,
    open_evaluator,
)
from phalanx.train.model_dir.metrics_log import MetricsEntry, format_entry
from phalanx.train.model_dir.status import State, Status, write_status


class Run:
    """The directory of a run, in which the next event happens whenever the evaluator sleeps."""

    def __init__(self, directory: Path, *events: Any) -> None:
        self.directory = str(directory)
        self.events = list(events)
        self.now = 0.0
        self.evaluated: list[int] = []
        numbers = tf.Variable(0)
        self.manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(n=numbers), self.directory, 3, checkpoint_name="model.ckpt"
        )

    def save(self, *steps: int) -> None:
        for step in steps:
            self.manager.save(checkpoint_number=step)

    def say(self, state: State, at: float | None = None) -> None:
        write_status(self.directory, Status(state, reason="why", time=at or time.time()))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.events:
            self.events.pop(0)(self)

    def evaluate(self, path: str) -> dict[str, float]:
        tf.train.load_checkpoint(path)
        self.now += 1
        self.evaluated.append(int(path.rpartition("-")[2]))
        return {"loss": 1.0}

    def follow(self, **how: Any) -> tuple[int, dict[str, float]]:
        return evaluate_checkpoints(
            self.directory,
            self.evaluate,
            WatchOptions(clock=lambda: self.now, sleep=self.sleep, **how),
        )


def done(run: Run) -> None:
    run.say(State.DONE)


def test_each_checkpoint_is_evaluated_until_the_run_is_done(tmp_path: Path) -> None:
    run = Run(tmp_path, lambda r: r.save(1, 2), lambda r: r.save(3), lambda r: r.save(4), done)
    assert run.follow() == (4, {"loss": 1.0})
    assert run.evaluated == [1, 2, 3, 4]


def test_skip_evaluates_only_the_newest(tmp_path: Path) -> None:
    run = Run(tmp_path, lambda r: r.save(1, 2, 3), lambda r: r.save(4), done)
    run.follow(skip=True)
    assert run.evaluated == [3, 4]


def test_last_checkpoint_is_evaluated_after_the_chief_is_done(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(1, 2)
    run.say(State.DONE)
    run.follow()
    assert run.evaluated == [1, 2]


def test_checkpoint_that_is_deleted_during_its_evaluation_is_ignored(tmp_path: Path) -> None:
    run = Run(tmp_path, lambda r: r.save(1, 2), done)
    intact = run.evaluate

    def evaluate(path: str) -> dict[str, float]:
        if path.endswith("-1"):
            for file in tmp_path.glob("model.ckpt-1.*"):
                file.unlink()
            raise tf.errors.NotFoundError(None, None, "gone")
        return intact(path)

    run.evaluate = evaluate  # type: ignore[method-assign]
    run.follow()
    assert run.evaluated == [2]


def test_other_errors_of_an_evaluation_are_raised(tmp_path: Path) -> None:
    def evaluate(path: str) -> dict[str, float]:
        raise tf.errors.NotFoundError(None, None, "no eval.tfrecord")

    run = Run(tmp_path, lambda r: r.save(1), done)
    run.evaluate = evaluate  # type: ignore[method-assign]
    with pytest.raises(tf.errors.NotFoundError, match=r"no eval\.tfrecord"):
        run.follow()


def test_checkpoint_of_another_model_is_rejected(tmp_path: Path) -> None:
    config = phalanx.RunConfig(model_dir=str(tmp_path), train_steps=1, global_batch_size=16)
    saved = phalanx.run(Line(), config).checkpoint

    class Deeper(Line):
        def model(self, context: phalanx.Context) -> Any:
            model = super().model(context)
            deeper = keras.Sequential([*model.layers, keras.layers.Dense(1)])
            deeper.compile("sgd", "mse")
            return deeper

    with (
        open_evaluator(Deeper(), config) as (evaluate, _),
        pytest.raises(ConfigurationError, match="a checkpoint of another model"),
    ):
        evaluate(saved)


def test_throttle_and_time_limit(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(1, 2, 3)
    run.follow(throttle_seconds=10, limit_seconds=15)
    assert run.evaluated == [1, 2]
    assert 15 <= run.now < 17


def test_only_checkpoints_newer_than_their_evaluation_are_evaluated_again(tmp_path: Path) -> None:
    run = Run(tmp_path, done)
    run.save(1, 2)
    (tmp_path / "eval").mkdir()
    lines = [MetricsEntry(1, time=time.time() + 60), MetricsEntry(2, time=1.0)]
    text = "".join(format_entry(line) for line in lines)
    (tmp_path / "eval/eval.jsonl").write_text(text)
    run.follow()
    assert run.evaluated == [2]


def test_failure_of_the_chief_is_raised_with_its_reason(tmp_path: Path) -> None:
    run = Run(tmp_path, lambda r: r.save(1), lambda r: r.say(State.FAILED))
    with pytest.raises(TrainingError, match="the chief ended: why"):
        run.follow()
    assert run.evaluated == [1]


@pytest.mark.parametrize("state", [State.FAILED, State.INTERRUPTED])
def test_a_chief_that_is_started_again_is_waited_for(tmp_path: Path, state: State) -> None:
    run = Run(tmp_path, lambda r: r.say(state), lambda r: r.save(1), lambda r: r.save(2), done)
    run.follow(chief_restarts=True)
    assert run.evaluated == [1, 2]


def test_a_chief_that_does_not_come_back_is_waited_for_within_the_limit(tmp_path: Path) -> None:
    run = Run(tmp_path, lambda r: r.say(State.FAILED))
    with pytest.raises(TrainingError, match="the chief ended: why"):
        run.follow(chief_restarts=True, wait_seconds=5)
    assert 5 < run.now < 8


def test_missing_heartbeat_ends_the_wait(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"no new checkpoint in .* for 5 s"):
        Run(tmp_path).follow(wait_seconds=5)


def test_an_evaluator_that_is_restarted_after_the_end_of_its_run_ends(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.save(3)
    write_status(run.directory, Status(State.DONE, 3, time=1.0, job="r1"))
    assert run.follow(since=time.time(), job="r1")[0] == 3
    with pytest.raises(PeerError):
        run.follow(since=time.time(), job="r2", wait_seconds=5)


def test_final_status_of_an_earlier_run_is_ignored(tmp_path: Path) -> None:
    run = Run(tmp_path, lambda r: r.say(State.RUNNING, time.time() + 9), lambda r: r.save(5), done)
    run.say(State.DONE, at=1.0)
    run.follow(since=time.time() - 9)
    assert run.evaluated == [5]
