"""When a periodic hook acts."""

from __future__ import annotations

from typing import Any

import pytest
from tests.train.small_experiment import train_line

import phalanx
from phalanx import hooks
from phalanx.errors import ConfigurationError


def test_action_hook_acts_when_due(config: phalanx.RunConfig) -> None:
    seen: dict[str, list[int]] = {"every": [], "at": []}
    train_line(
        config,
        hooks.ActionHook(hooks.Every(steps=2), lambda session: seen["every"].append(session.step)),
        hooks.ActionHook(hooks.At(1, 5), lambda session: seen["at"].append(session.step)),
    )
    assert seen == {"every": [2, 4, 6], "at": [1, 5]}


def test_custom_periodic_hook_changes_the_learning_rate(config: phalanx.RunConfig) -> None:
    class HalveTheRate(hooks.PeriodicHook):
        def act(self, session: Any) -> None:
            session.learning_rate /= 2

    rates: dict[int, float] = {}
    watch = hooks.ActionHook(
        hooks.Every(steps=1), lambda session: rates.update({session.step: session.learning_rate})
    )
    train_line(config, watch, HalveTheRate(hooks.At(3)))
    assert rates[2] == pytest.approx(0.05)
    assert rates[4] == pytest.approx(0.025)
    # A restored run counts from its restored step.
    train_line(config, watch, HalveTheRate(hooks.At(3)), train_steps=8)
    assert rates[8] == pytest.approx(0.025)


def test_every_counts_steps_and_seconds() -> None:
    every = hooks.Every(steps=10, seconds=60)
    every.start(0, 0.0)
    times = [(9, 59.0), (9, 61.0), (10, 62.0), (11, 121.0), (11, 122.0)]
    assert [every.is_due(*time) for time in times] == [False, True, True, False, True]
    with pytest.raises(ConfigurationError, match=r"Every\(steps=0\): it must be more than 0"):
        hooks.Every(steps=0)
