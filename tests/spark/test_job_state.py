"""Who has to end, and which failure is told: the rules, with a clock made up."""

from __future__ import annotations

from phalanx.cluster.spec import Role, Task
from phalanx.launch.termination import GracePeriods
from phalanx.spark.job_state import CAUSE_SECONDS, Cause, Failure, JobState

CHIEF, WORKER, OTHER = Task(Role.CHIEF), Task(Role.WORKER, 0), Task(Role.WORKER, 1)
PS, EVALUATOR = Task(Role.PS), Task(Role.EVALUATOR)


def test_no_task_ends_while_the_chief_trains() -> None:
    state = JobState([CHIEF, WORKER, PS])
    state.task_ended(WORKER, None, 1)
    assert state.tasks_to_end(1000) == []
    assert not state.is_over(1000)


def test_after_success_workers_linger_and_ps_end_last() -> None:
    state = JobState([CHIEF, WORKER, PS])
    state.task_ended(CHIEF, None, 0)
    assert state.tasks_to_end(GracePeriods.linger - 1) == []
    assert state.tasks_to_end(GracePeriods.linger) == [WORKER]
    assert state.tasks_to_end(GracePeriods.linger + 1) == []
    state.task_ended(WORKER, Failure(WORKER, "ended by the driver"), 12)
    assert state.tasks_to_end(12) == [PS]
    state.task_ended(PS, None, 13)
    assert state.is_over(13)
    assert state.failure is None


def test_evaluator_lingers_longer() -> None:
    state = JobState([CHIEF, EVALUATOR])
    state.task_ended(CHIEF, None, 0)
    assert state.tasks_to_end(GracePeriods.evaluator_linger - 1) == []
    assert state.tasks_to_end(GracePeriods.evaluator_linger) == [EVALUATOR]


def test_without_a_chief_all_workers_must_succeed() -> None:
    state = JobState([WORKER, OTHER])
    state.task_ended(WORKER, None, 0)
    assert not state.is_over(1000)
    state.task_ended(OTHER, None, 1)
    assert state.is_over(1)


def test_failure_ends_all_tasks_at_once_and_ps_last() -> None:
    state = JobState([CHIEF, WORKER, OTHER, PS])
    state.task_ended(OTHER, Failure(OTHER, "bad"), 1)
    assert state.tasks_to_end(1) == [CHIEF, WORKER]
    state.task_ended(CHIEF, Failure(CHIEF, "interrupted"), 2)
    state.task_ended(WORKER, Failure(WORKER, "interrupted"), 2)
    assert state.tasks_to_end(2) == [PS]
    assert state.failure == Failure(OTHER, "bad")


def test_cause_is_reported_even_if_others_failed_first() -> None:
    state = JobState([CHIEF, WORKER, OTHER])
    state.task_ended(CHIEF, Failure(CHIEF, "worker-1 failed", Cause.REPORTED), 1)
    state.task_ended(WORKER, Failure(WORKER, "a peer is gone", Cause.PEER), 1)
    assert state.tasks_to_end(1) == []
    state.task_ended(OTHER, Failure(OTHER, "the cause"), 2)
    assert state.failure == Failure(OTHER, "the cause")


def test_wait_for_the_cause_is_limited() -> None:
    state = JobState([CHIEF, WORKER])
    state.task_ended(WORKER, Failure(WORKER, "a peer is gone", Cause.PEER), 1)
    assert state.tasks_to_end(CAUSE_SECONDS) == []
    assert state.tasks_to_end(1 + CAUSE_SECONDS) == [CHIEF]


def test_wait_for_a_task_that_does_not_end_is_limited() -> None:
    state = JobState([CHIEF, WORKER])
    state.task_ended(WORKER, Failure(WORKER, "bad"), 0)
    state.tasks_to_end(0)
    assert not state.is_over(GracePeriods.grace)
    assert state.is_over(GracePeriods.grace + CAUSE_SECONDS + 1)
