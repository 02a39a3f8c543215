"""The rules of restarting, without processes."""

from __future__ import annotations

import random
import signal

import pytest

from phalanx.cluster.spec import Role, Task
from phalanx.launch.processes.restarts import (
    CHIEF_ABSENCE_SECONDS,
    PREEMPTED,
    REFILL_SECONDS,
    RestartPolicy,
    TaskFailure,
    find_exception,
    names_lost_peer,
)

WORKER, EVALUATOR = Task(Role.WORKER, 0), Task(Role.EVALUATOR, 0)


def test_delays_grow_and_the_budget_ends() -> None:
    policy = RestartPolicy(4)
    decisions = [policy.decide(TaskFailure(WORKER, 1), now) for now in range(5)]
    assert [decision.delay for decision in decisions] == [0, 1, 2, 4, None]
    assert decisions[0].reason == "worker-0 failed with exit code 1: restart 1 of 4"
    assert decisions[-1].fails_job
    assert decisions[-1].reason == "worker-0 failed with exit code 1, restarted 4 times"


def test_a_chief_on_parameter_servers_stays_away_until_its_workers_have_noticed() -> None:
    chief = Task(Role.CHIEF)
    policy = RestartPolicy(9, has_servers=True)
    lost = TaskFailure(chief, 1, lost_peer=True)
    assert policy.decide(lost, 0).delay == CHIEF_ABSENCE_SECONDS
    delays = [policy.decide(TaskFailure(chief, -9), 0).delay for _ in range(5)]
    assert delays == [3.0, 3.0, 3.0, 4.0, 8.0]
    assert policy.decide(TaskFailure(chief, PREEMPTED), 0).delay == 0
    assert policy.decide(TaskFailure(WORKER, -9), 0).delay == 0
    assert RestartPolicy(9).decide(TaskFailure(chief, -9), 0).delay == 0


def test_preemptions_and_lost_peers_do_not_count() -> None:
    policy = RestartPolicy(1)
    for _ in range(10):
        assert policy.decide(TaskFailure(WORKER, PREEMPTED), 0).delay == 0
        # Before the first step, nothing handles SIGTERM, and there is nothing to save.
        assert policy.decide(TaskFailure(WORKER, -signal.SIGTERM), 0).delay == 0
        assert policy.decide(TaskFailure(WORKER, 1, lost_peer=True), 0).delay == 0
    assert "restart 1 of 1" in policy.decide(TaskFailure(WORKER, 1), 0).reason
    assert policy.decide(TaskFailure(WORKER, 1), 0).fails_job


def test_wrong_usage_is_not_restarted() -> None:
    decision = RestartPolicy(3).decide(TaskFailure(WORKER, 2), 0)
    assert decision.fails_job
    assert decision.reason == "worker-0 failed with exit code 2"


def test_without_restarts_nothing_is_restarted() -> None:
    for failure in (TaskFailure(WORKER, PREEMPTED), TaskFailure(WORKER, 1, lost_peer=True)):
        assert RestartPolicy(0).decide(failure, 0).fails_job


def test_an_hour_of_progress_fills_the_budget() -> None:
    policy = RestartPolicy(1)
    policy.start(WORKER, 0, 0)
    assert not policy.decide(TaskFailure(WORKER, 1, step=5), 10).fails_job
    policy.start(WORKER, 5, 10)
    assert not policy.decide(TaskFailure(WORKER, 1, step=9), 10 + REFILL_SECONDS).fails_job
    policy.start(WORKER, 9, 5000)
    # An hour without a step is no progress.
    assert policy.decide(TaskFailure(WORKER, 1, step=9), 5000 + REFILL_SECONDS).fails_job


def test_the_same_exception_at_the_same_step_is_a_bug() -> None:
    policy = RestartPolicy(9)
    for step in (3, 4):
        assert not policy.decide(TaskFailure(WORKER, 1, "ValueError: x", step), 0).fails_job
    decision = policy.decide(TaskFailure(WORKER, 1, "ValueError: x", 4), 0)
    assert decision.fails_job
    assert "'ValueError: x' at step 4, as the time before, is a bug" in decision.reason


def test_a_killed_evaluator_never_fails_the_job() -> None:
    policy = RestartPolicy(0)
    decisions = [policy.decide(TaskFailure(EVALUATOR, -9), 0) for _ in range(5)]
    assert [decision.delay for decision in decisions] == [0, 1, 2, None, None]
    assert not any(decision.fails_job for decision in decisions)
    assert policy.lost == {EVALUATOR}
    assert RestartPolicy(0).decide(TaskFailure(EVALUATOR, 1), 0).fails_job


def test_a_hang_is_the_reason() -> None:
    decision = RestartPolicy(0).decide(
        TaskFailure(WORKER, -9, hang="was stopped, and was killed"), 0
    )
    assert decision.reason == "worker-0 was stopped, and was killed"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["x", "keras.errors.ShapeError: <Layer at 0x7f> no"], "ShapeError: <Layer at 0x> no"),
        (["ValueError: a", "more", "KeyError: 'b'"], "KeyError: 'b'"),
        (["tensorflow.python.framework.errors_impl.AbortedError: peer"], ""),
        (["ConnectionRefusedError: [Errno 111]"], ""),
        (["12:00:01 the loss is 1"], ""),
        (
            ["phalanx: the loss is nan at step 7: lower the learning rate, or"],
            "the loss is nan at step 7",
        ),
    ],
)
def test_the_last_exception_of_the_program_is_found(lines: list[str], found: str) -> None:
    assert find_exception(lines) == found


def test_the_loss_of_a_peer_is_read_from_the_output() -> None:
    assert names_lost_peer(["a", "phalanx: a peer stopped responding: UnavailableError", "b"])
    assert not names_lost_peer(["phalanx: the data is empty"])


@pytest.mark.parametrize("seed", range(20))
def test_whatever_fails_restarts_are_bounded(seed: int) -> None:
    """In made-up histories of failures, every job ends after a bounded number of restarts."""
    chance = random.Random(seed)
    policy, restarts, now, step = RestartPolicy(3), 0, 0.0, 0
    tasks = [WORKER, EVALUATOR, Task(Role.CHIEF, 0), Task(Role.PS, 0)]
    while True:
        now += chance.expovariate(1 / 30)
        step += chance.randrange(3)
        task = chance.choice([task for task in tasks if task not in policy.lost])
        failure = TaskFailure(
            task,
            chance.choice([1, 3, -9, -15, PREEMPTED]),
            chance.choice(["", "", "ValueError: x", "KeyError: y"]),
            step,
            lost_peer=chance.random() < 0.2,
        )
        decision = policy.decide(failure, now)
        if decision.fails_job:
            break
        if decision.delay is not None:
            restarts += 1
            assert 0 <= decision.delay <= 60
            policy.start(task, step, now)
        assert restarts < 500


def test_without_known_steps_the_same_exception_twice_may_be_no_bug() -> None:
    policy = RestartPolicy(restarts=5, knows_steps=False)
    failure = TaskFailure(Task(Role.WORKER), 1, "ValueError: no such layer")
    assert [policy.decide(failure, now).fails_job for now in (1.0, 2.0)] == [False, False]
