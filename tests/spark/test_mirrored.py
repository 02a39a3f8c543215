"""The settings of MirroredStrategyRunner."""

from __future__ import annotations

import pytest

from phalanx.errors import JobError
from phalanx.spark.mirrored import MirroredStrategyRunner, count_gpus


def test_gpus_are_spread_over_the_tasks() -> None:
    assert [count_gpus(5, 2, index) for index in range(2)] == [3, 2]


def test_number_of_slots_must_be_positive() -> None:
    with pytest.raises(JobError, match="num_slots is 0: it must be at least 1"):
        MirroredStrategyRunner(num_slots=0)
