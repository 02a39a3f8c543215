"""The linear scaling rule with warm-up."""

from __future__ import annotations

import keras
import pytest

import phalanx


def test_rate_grows_to_its_multiple_within_the_warmup() -> None:
    schedule = phalanx.LinearScaling(0.1, replicas=4, warmup_steps=10)
    rates = [float(schedule(step)) for step in (0, 5, 10, 100)]
    assert rates == pytest.approx([0.1, 0.25, 0.4, 0.4])


def test_without_warmup_the_rate_is_multiplied_at_once() -> None:
    assert float(phalanx.LinearScaling(0.1, replicas=4)(0)) == pytest.approx(0.4)


def test_another_schedule_is_multiplied_and_survives_serialization() -> None:
    decay = keras.optimizers.schedules.CosineDecay(0.1, 100)
    schedule = phalanx.LinearScaling(decay, replicas=2, warmup_steps=10)
    optimizer = keras.optimizers.SGD(schedule)
    loaded = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    for step in (0, 7, 50):
        expected = float(decay(step)) * (1 + min(step / 10, 1))
        assert float(loaded._learning_rate(step)) == pytest.approx(expected)
