"""The settings of MirroredStrategyRunner."""

from typing import Any

import pytest

from phalanx.errors import JobError
from phalanx.spark.mirrored import MirroredStrategyRunner, count_gpus


def test_gpus_are_spread_over_the_tasks() -> None:
    assert [count_gpus(5, 2, index) for index in range(2)] == [3, 2]


@pytest.mark.parametrize("num_slots", [0, -1, "2", 1.5])
def test_number_of_slots_must_be_a_positive_number(num_slots: Any) -> None:
    with pytest.raises(
        ValueError, match=r"num_slots is .*: it must be a number from 1 on"
    ) as error:
        MirroredStrategyRunner(num_slots=num_slots)
    assert isinstance(error.value, JobError)
