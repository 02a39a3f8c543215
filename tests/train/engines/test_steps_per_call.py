"""The number of steps in one call."""

from __future__ import annotations

from phalanx.train.engines.steps_per_call import StepsPerCall


def test_steps_approach_the_target_duration() -> None:
    steps_per_call = StepsPerCall(target=0.2)
    for _ in range(5):
        steps_per_call.record(steps_per_call.steps, 0.01 * steps_per_call.steps)
    assert steps_per_call.steps == 20


def test_first_call_traces_and_does_not_count() -> None:
    steps_per_call = StepsPerCall(target=0.2)
    steps_per_call.record(1, 0.0001)
    assert steps_per_call.steps == 1


def test_growth_is_limited() -> None:
    steps_per_call = StepsPerCall(target=0.2, limit=50)
    seen = []
    for _ in range(4):
        steps_per_call.record(1, 1e-6)
        seen.append(steps_per_call.steps)
    assert seen == [1, 8, 50, 50]


def test_fixed_number_is_kept() -> None:
    steps_per_call = StepsPerCall(fixed=3)
    steps_per_call.record(3, 9.0)
    steps_per_call.record(3, 9.0)
    assert steps_per_call.steps == 3
