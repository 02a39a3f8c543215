"""What the tasks of a run report to their task files about their training."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from tests.train.small_experiment import Line

import phalanx
from phalanx.cluster.spec import Role, Task
from phalanx.train.hooks import task_file
from phalanx.train.hooks.task_file import report_steps
from phalanx.train.model_dir.task_files import read_task_files, report_task
from phalanx.train.step.step_times import StepTimes

SLEEP = 0.2
STEPS = 5


def sleep(value: Any) -> Any:
    """Return the same tensor after a while."""
    (spec,) = tf.nest.flatten(value)

    def wait(tensor: Any) -> Any:
        time.sleep(SLEEP)
        return tensor

    slow = tf.py_function(wait, [value], spec.dtype)
    slow.set_shape(spec.shape)
    return slow


class SlowData(Line):
    def train_data(self, context: phalanx.Context) -> Any:
        return super().train_data(context).map(lambda x, y: (sleep(x), y)).repeat()


class SlowStep(Line):
    def train_data(self, context: phalanx.Context) -> Any:
        return super().train_data(context).repeat()

    def train_step(self, model: Any, batch: Any) -> Any:
        x, y = batch
        return {"loss": tf.reduce_mean(tf.square(y - model(sleep(x), training=True)))}


@pytest.fixture
def reports_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_file, "HEARTBEAT_SECONDS", 0)


@pytest.mark.parametrize(
    ("experiment", "part", "settings"),
    [
        (SlowData(), "waiting for data", {}),
        (SlowData(), "waiting for data", {"accumulate": 2, "global_batch_size": 64}),
        (SlowStep(), "computing", {}),
    ],
    ids=["slow data", "slow data in parts", "slow step"],
)
def test_run_reports_what_a_step_spends_its_time_on(
    tmp_path: Path, reports_always: None, experiment: Any, part: str, settings: Any
) -> None:
    config = phalanx.RunConfig(
        model_dir=str(tmp_path), train_steps=STEPS, log_steps=1, steps_per_call=1, **settings
    )
    phalanx.run(experiment, config)
    [report] = read_task_files(tmp_path)
    assert report.parts[part] >= SLEEP / 2
    names = {"waiting for data", "computing", "waiting for peers", "other"}
    assert names <= report.parts.keys()
    assert report.parts["waiting for peers"] == 0
    assert report.seconds_per_step == pytest.approx(sum(report.parts.values()))


def test_parts_are_never_negative_when_a_clock_is_set() -> None:
    assert StepTimes.split(1.0, data=-0.5, peers=0.25) == StepTimes(0.0, 0.75, 0.25)
    assert StepTimes.split(1.0, data=9.0, peers=9.0) == StepTimes(1.0, 0.0, 0.0)
    assert StepTimes.split(-1.0, data=0.1, peers=0.1) == StepTimes()


def test_follower_reports_its_own_parts(tmp_path: Path, reports_always: None) -> None:
    (tmp_path / "cluster").mkdir()
    with report_task(str(tmp_path), Task(Role.WORKER), leads=False):
        report = report_steps()
        report(10, StepTimes(1, 2, 3))
        report(20, StepTimes(2, 4, 6))
    [found] = read_task_files(tmp_path)
    assert found.step == 20
    parts = found.parts
    assert (parts["waiting for data"], parts["computing"]) == (0.1, 0.2)
    assert parts["waiting for peers"] == pytest.approx(0.3)
