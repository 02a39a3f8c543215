"""The rules of termination, and the description of exit codes."""

from __future__ import annotations

import math

from phalanx.cluster.spec import Role, Task
from phalanx.launch.base import TaskState
from phalanx.launch.termination import (
    GracePeriods,
    deciding_tasks,
    decode_exit_code,
    describe_exit,
    describe_failure,
    has_succeeded,
    time_left,
)

CHIEF, WORKER, PS = Task(Role.CHIEF), Task(Role.WORKER), Task(Role.PS)


def test_job_succeeds_with_its_chief_while_others_run() -> None:
    assert has_succeeded({CHIEF: TaskState.DONE, WORKER: TaskState.RUNNING, PS: TaskState.RUNNING})
    assert not has_succeeded({CHIEF: TaskState.RUNNING, WORKER: TaskState.DONE})


def test_workers_decide_without_a_chief() -> None:
    assert deciding_tasks([WORKER, PS]) == [WORKER]
    assert deciding_tasks([PS, WORKER, CHIEF]) == [CHIEF]


def test_time_left_after_success() -> None:
    periods = GracePeriods(linger=5, evaluator_linger=7)
    assert time_left(WORKER, [WORKER], False, periods) == 5
    assert time_left(Task(Role.EVALUATOR), [], False, periods) == 7
    assert time_left(PS, [WORKER, PS], False, periods) == math.inf
    assert time_left(PS, [PS], False, periods) == 0


def test_time_left_after_failure() -> None:
    assert time_left(WORKER, [WORKER, PS], True, GracePeriods()) == 0
    assert time_left(PS, [WORKER, PS], True, GracePeriods()) == math.inf


def test_exit_codes() -> None:
    assert [decode_exit_code(code) for code in (0, 1, 137, 255)] == [0, 1, -9, 255]
    killed = "was killed by SIGKILL (the system does that when memory runs out)"
    assert describe_exit(-9) == killed
    assert describe_exit(None) == "failed"
    assert describe_failure(WORKER, 3, 2) == "worker-0 failed with exit code 3, restarted 2 times"
