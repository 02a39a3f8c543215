"""Which trainers are named as stragglers, by the steps that they have made."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.train.hooks import StragglerHook


def test_a_slow_trainer_is_named_once_and_again_when_it_has_caught_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("phalanx"), "propagate", True)
    caplog.set_level(logging.INFO, "phalanx")
    session: Any = SimpleNamespace(now=0.0, trainer_steps={}, stragglers=frozenset())
    hook = StragglerHook(factor=2, seconds=30)
    hook.begin(session)
    total = dict.fromkeys(("chief-0", "worker-0", "worker-1"), 0)

    def train(seconds: float, *steps: int) -> None:
        for task, count in zip(total, steps, strict=True):
            total[task] += count
        session.now, session.trainer_steps = session.now + seconds, dict(total)
        hook.after_step(session)

    train(10, 0, 0, 0)
    train(20, 90, 100, 40)
    assert session.stragglers == {"worker-1"}
    train(31, 100, 100, 30)
    assert session.stragglers == {"worker-1"}
    # Too few steps to say anything, until there are more.
    train(31, 1, 2, 0)
    assert session.stragglers == {"worker-1"}
    train(31, 100, 100, 90)
    assert session.stragglers == frozenset()
    assert [record.getMessage() for record in caplog.records] == [
        "worker-1 is a straggler: it made 40 steps in 30 s, and half of the trainers made at least "
        "90",
        "worker-1 is no straggler any more",
    ]
