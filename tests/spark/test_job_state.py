"""Who has to end, and which failure is told: the rules, with a clock made up."""

from __future__ import annotations

from phalanx.cluster.spec import Role, Task
from phalanx.launch.termination import GracePeriods
from phalanx.spark.job_state import CAUSE_SECONDS, Cause, Ensemble, Failure

CHIEF, WORKER, OTHER = Task(Role.CHIEF), Task(Role.WORKER, 0), Task(Role.WORKER, 1)
PS, EVALUATOR = Task(Role.PS), Task(Role.EVALUATOR)


def test_nobody_is_asked_to_end_while_the_chief_trains() -> None:
    ensemble = Ensemble([CHIEF, WORKER, PS])
    ensemble.ended(WORKER, None, 1)
    assert ensemble.to_end(1000) == []
    assert not ensemble.is_over(1000)


def test_when_the_chief_is_done_workers_may_finish_and_ps_come_last() -> None:
    ensemble = Ensemble([CHIEF, WORKER, PS])
    ensemble.ended(CHIEF, None, 0)
    assert ensemble.to_end(GracePeriods.linger - 1) == []
    assert ensemble.to_end(GracePeriods.linger) == [WORKER]
    assert ensemble.to_end(GracePeriods.linger + 1) == []
    ensemble.ended(WORKER, Failure(WORKER, "ended by the driver"), 12)
    assert ensemble.to_end(12) == [PS]
    ensemble.ended(PS, None, 13)
    assert ensemble.is_over(13)
    assert ensemble.failure is None


def test_an_evaluator_has_longer() -> None:
    ensemble = Ensemble([CHIEF, EVALUATOR])
    ensemble.ended(CHIEF, None, 0)
    assert ensemble.to_end(GracePeriods.evaluator_linger - 1) == []
    assert ensemble.to_end(GracePeriods.evaluator_linger) == [EVALUATOR]


def test_without_a_chief_all_workers_must_be_done() -> None:
    ensemble = Ensemble([WORKER, OTHER])
    ensemble.ended(WORKER, None, 0)
    assert not ensemble.is_over(1000)
    ensemble.ended(OTHER, None, 1)
    assert ensemble.is_over(1)


def test_a_failure_of_its_own_ends_all_at_once_but_ps_last() -> None:
    ensemble = Ensemble([CHIEF, WORKER, OTHER, PS])
    ensemble.ended(OTHER, Failure(OTHER, "bad"), 1)
    assert ensemble.to_end(1) == [CHIEF, WORKER]
    ensemble.ended(CHIEF, Failure(CHIEF, "interrupted"), 2)
    ensemble.ended(WORKER, Failure(WORKER, "interrupted"), 2)
    assert ensemble.to_end(2) == [PS]
    assert ensemble.failure == Failure(OTHER, "bad")


def test_the_cause_is_told_even_if_others_failed_first() -> None:
    ensemble = Ensemble([CHIEF, WORKER, OTHER])
    ensemble.ended(CHIEF, Failure(CHIEF, "worker-1 failed", Cause.TOLD), 1)
    ensemble.ended(WORKER, Failure(WORKER, "a peer is gone", Cause.PEER), 1)
    assert ensemble.to_end(1) == []
    ensemble.ended(OTHER, Failure(OTHER, "the cause"), 2)
    assert ensemble.failure == Failure(OTHER, "the cause")


def test_the_cause_is_not_waited_for_long() -> None:
    ensemble = Ensemble([CHIEF, WORKER])
    ensemble.ended(WORKER, Failure(WORKER, "a peer is gone", Cause.PEER), 1)
    assert ensemble.to_end(CAUSE_SECONDS) == []
    assert ensemble.to_end(1 + CAUSE_SECONDS) == [CHIEF]


def test_a_task_that_does_not_end_is_not_waited_for_without_limit() -> None:
    ensemble = Ensemble([CHIEF, WORKER])
    ensemble.ended(WORKER, Failure(WORKER, "bad"), 0)
    ensemble.to_end(0)
    assert not ensemble.is_over(GracePeriods.grace)
    assert ensemble.is_over(GracePeriods.grace + CAUSE_SECONDS + 1)
