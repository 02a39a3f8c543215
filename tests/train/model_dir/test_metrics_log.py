"""The metrics log and the comparison of its entries."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from phalanx.errors import ConfigurationError
from phalanx.train.model_dir.metrics_log import (
    MetricsEntry,
    find_best,
    format_entry,
    guess_direction,
    is_better,
    rank,
    read_evaluations,
)


def test_entries_are_read_in_the_order_of_steps_and_the_last_of_a_step_counts(
    tmp_path: Path,
) -> None:
    entries = [
        MetricsEntry(20, {"loss": 2.0}, 3.0, "model.ckpt-20"),
        MetricsEntry(10, {"loss": 9.0}, 1.0),
        MetricsEntry(10, {"loss": math.inf}, 2.0),
    ]
    (tmp_path / "eval").mkdir()
    text = "".join(format_entry(entry) for entry in entries) + '{"step": 30, "ti'
    (tmp_path / "eval/eval.jsonl").write_text(text)
    first, second = read_evaluations(str(tmp_path))
    assert (first.step, first.time) == (10, 2.0)
    assert math.isnan(first.values["loss"])
    assert second == entries[0]
    assert read_evaluations(str(tmp_path / "nothing")) == []


@pytest.mark.parametrize(
    ("metric", "direction"),
    [("loss", "min"), ("val_accuracy", "max"), ("top-5", "max"), ("stopped", "min")],
)
def test_the_name_of_a_metric_tells_its_direction(metric: str, direction: str) -> None:
    assert guess_direction(metric) == direction


def test_any_value_is_better_than_nan() -> None:
    assert is_better(9.0, math.nan, "loss")
    assert not is_better(math.nan, 9.0, "loss")
    assert not is_better(math.nan, math.nan, "loss")


def test_the_first_of_equal_entries_is_the_best() -> None:
    values = [math.nan, 3.0, 1.0, 1.0]
    entries = [MetricsEntry(step, {"loss": value}) for step, value in enumerate(values)]
    best, worst = find_best(entries, "loss"), find_best(entries, "loss", "max")
    assert best is not None and best.step == 2
    assert worst is not None and worst.step == 1
    assert find_best(entries, "f1") is None
    with pytest.raises(ConfigurationError, match="there are loss"):
        rank(entries, "f1")
