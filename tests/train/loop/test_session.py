"""The training loop: epochs, hooks, and what a restart continues."""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.small_experiment import Line, train_line

import phalanx
from phalanx import hooks
from phalanx.train.loop.session import Session
from phalanx.train.model_dir.status import read_status


def test_metrics_of_an_epoch_include_the_steps_before_a_restart(
    config: phalanx.RunConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def read_epochs(directory: Path, *stops: int, experiment: Line | None = None) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.INFO, "phalanx"):
            for steps in stops:
                settings = config.replace(model_dir=str(directory), train_steps=steps)
                phalanx.run(experiment or Line(), settings)
        return [text for text in caplog.messages if text.startswith("epoch")]

    whole = read_epochs(tmp_path / "whole", 9)
    assert [line.partition(":")[0] for line in whole] == ["epoch 1", "epoch 2"]
    assert "mae = " in whole[0]
    assert read_epochs(tmp_path / "parts", 3, 6, 9) == whole

    class OtherMetrics(Line):
        def model(self, context: phalanx.Context) -> Any:
            model = super().model(context)
            model.compile("sgd", "mse", metrics=["mae", "mse"])
            return model

    # With other metrics than before the restart, the means start from there.
    train_line(config, model_dir=str(tmp_path / "other"), train_steps=2)
    assert len(read_epochs(tmp_path / "other", 5, experiment=OtherMetrics())) == 1


def test_run_ends_after_its_epochs_and_calls_the_hooks(
    config: phalanx.RunConfig, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    class NoteCalls(hooks.Hook):
        def begin(self, session: Session) -> None:
            calls.append("begin")

        def due(self, step: int) -> int:
            return step + 1

        def after_step(self, session: Session) -> None:
            calls.append(str(session.step))

        def on_save(self, session: Session, path: str) -> None:
            calls.append("save")

        def end(self, session: Session) -> None:
            calls.append("end")

    settings: dict[str, Any] = {"train_steps": None, "epochs": 2, "save_steps": 4, "keep_max": 2}
    with caplog.at_level(logging.INFO, "phalanx"):
        result = train_line(config, NoteCalls(), log_steps=4, **settings)
    assert result.step == 8
    assert " ".join(calls) == "save begin 1 2 3 save 4 5 6 7 save 8 end"
    directory = Path(str(config.model_dir))
    assert len(list(directory.glob("model.ckpt-*.index"))) == 2
    assert list(directory.glob("events.*")) and list((directory / "eval").glob("events.*"))
    status = read_status(str(directory))
    assert status is not None and (status.state, status.step) == ("done", 8)
    assert "Average examples/sec: " in caplog.text
    assert "Evaluation [1/4]" in caplog.text


def test_hook_sets_the_last_step(config: phalanx.RunConfig) -> None:
    enough = hooks.ActionHook(hooks.At(2), lambda session: session.set_limit(3))
    assert train_line(config, enough, train_steps=10**9).step == 3


def test_hook_pushes_the_weights_that_it_changed(config: phalanx.RunConfig) -> None:
    def change(session: Session) -> None:
        session.pull()
        for variable in session.variables.values():
            variable.assign(variable * 0 + 7.0)
        session.push()

    result = phalanx.run(Line(rate=1e-9), config, hooks=[hooks.ActionHook(hooks.At(3), change)])
    assert result.step == 6
    for weight in result.model.get_weights():
        np.testing.assert_allclose(weight, 7.0, rtol=1e-4)


def test_sigterm_during_an_evaluation_saves_without_waiting_for_its_end(
    config: phalanx.RunConfig,
) -> None:
    batches: list[int] = []

    class Preempt(hooks.Hook):
        needs_evaluation_batches = True

        def on_evaluation_batch(self, session: Session, count: int, report: Any) -> None:
            batches.append(count)
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(phalanx.Interrupted, match="step 3 is saved"):
            train_line(config, Preempt(), train_steps=6, eval_every_steps=3)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert batches == [1]
    # The next start goes on, and evaluates.
    assert train_line(config, train_steps=6).metrics
