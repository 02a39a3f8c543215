"""Evaluation: its progress, and evaluation data without examples."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.train.small_experiment import Line

import phalanx
from phalanx.errors import DataError
from phalanx.train.engines.base import Notify
from phalanx.train.loop import evaluation
from phalanx.train.loop.evaluation import count_batches, evaluate
from phalanx.train.model_dir.metrics_log import read_evaluations
from phalanx.train.model_dir.summaries import Summaries
from phalanx.train.step.step_function import StepFunction


class FakeEngine:
    """Evaluates a fixed number of batches of two examples, each with a loss of 3."""

    def __init__(self, batches: int, report_size: int) -> None:
        self.batches = batches
        self.report_size = report_size

    def evaluate(self, notify: Notify, batches_per_call: int | None = None) -> Any:
        report = np.zeros(self.report_size)
        report[:3] = [2.0, 6.0, 2.0]
        for done in range(1, self.batches + 1):
            notify(done, report * done)
        return report * self.batches


def run_evaluation(
    directory: Path, batches: int, trained: bool = True, is_known: bool = True
) -> dict[str, float]:
    context = phalanx.Context(batch_size=2)
    step_function = StepFunction(Line(), context)
    step_function.build(None, Line().eval_data(context).element_spec)
    engine: Any = FakeEngine(batches, step_function.report_size)
    summaries = Summaries(str(directory))
    return evaluate(
        step_function, engine, summaries, batches if is_known else None, 7, trained=trained
    )


@pytest.mark.parametrize(
    ("length", "limit", "count"),
    [(5, None, 5), (5, 3, 3), (5, 9, 5), (None, None, None), (None, 3, 3)],
)
def test_number_of_batches_is_limited_and_may_be_unknown(
    length: int | None, limit: int | None, count: int | None
) -> None:
    data = tf.data.Dataset.range(length or 9)
    assert count_batches(data if length else data.filter(lambda n: n > 3), limit) == count


def test_result_is_written_and_progress_is_logged_in_tenths(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "phalanx"):
        assert run_evaluation(tmp_path, 40)["loss"] == 3
    progress = [text for text in caplog.messages if text.startswith("Evaluation [")]
    assert progress[:2] == ["Evaluation [1/40]", "Evaluation [5/40]"]
    assert progress[-1] == "Evaluation [40/40]"
    assert len(progress) <= 12
    assert "Evaluation of step 7: loss = 3" in caplog.text
    (written,) = read_evaluations(str(tmp_path))
    assert (written.step, written.values["loss"]) == (7, 3)


@pytest.mark.parametrize(("seconds", "lines"), [(60.0, 0), (0.0, 3)])
def test_unknown_number_of_batches_is_logged_by_time(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    seconds: float,
    lines: int,
) -> None:
    monkeypatch.setattr(evaluation, "_SECONDS_BETWEEN_LINES", seconds)
    with caplog.at_level(logging.INFO, "phalanx"):
        run_evaluation(tmp_path, 3, is_known=False)
    progress = [text for text in caplog.messages if re.match(r"Evaluation: \d+ batches", text)]
    assert len(progress) == lines
    assert "Evaluation [" not in caplog.text


def test_batches_are_counted_for_each_replica() -> None:
    data = tf.data.Dataset.range(5)
    assert count_batches(data, None, replicas=2) == 3
    assert count_batches(data.filter(lambda n: n > 3), None, replicas=2) is None


def test_evaluation_of_given_weights_names_no_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "phalanx"):
        run_evaluation(tmp_path, 2, trained=False)
    assert caplog.messages[-1].startswith("Evaluation: loss = 3")


def test_empty_evaluation_data_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="eval_data is empty"):
        run_evaluation(tmp_path, 0)
