"""Too few slots are told in seconds."""

import pytest

from phalanx.errors import JobError
from phalanx.spark.stage import SparkSlots, wait_for_slots


def wait(needed: int, *counts: SparkSlots, seconds: float = 3, gpus: int = 0) -> int:
    """How often it slept, with these counts one after the other."""
    left, slept = list(counts), [0.0]
    wait_for_slots(
        needed,
        "1 chief, 2 workers",
        lambda: left.pop(0) if len(left) > 1 else left[0],
        seconds,
        gpus,
        clock=lambda: sum(slept),
        sleep=slept.append,
    )
    return len(slept) - 1


def test_no_wait_for_free_slots() -> None:
    assert wait(3, SparkSlots(4, 3, 2)) == 0


def test_waits_for_executors_to_start() -> None:
    assert wait(3, SparkSlots(0, 0, 1), SparkSlots(2, 2, 2), SparkSlots(4, 4, 2)) == 2


def test_too_small_cluster_raises() -> None:
    with pytest.raises(JobError, match=r"1 chief, 2 workers need 3 slots .* 2 of Spark's 2 are"):
        wait(3, SparkSlots(2, 2, 2))


def test_cluster_without_gpus_raises() -> None:
    with pytest.raises(JobError, match="gpus_per_task is 2, but no executor of Spark has so many"):
        wait(3, SparkSlots(0, 0, 1), gpus=2)


def test_cluster_without_executors_raises() -> None:
    with pytest.raises(JobError, match=r"no executor of Spark has started: .* \(wait_seconds\)"):
        wait(3, SparkSlots(0, 0, 0), gpus=2)


def test_busy_cluster_raises() -> None:
    with pytest.raises(JobError, match=r"1 of Spark's 4 are free: wait until other jobs are done"):
        wait(3, SparkSlots(4, 1, 2))
