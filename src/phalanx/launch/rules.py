"""When a job has succeeded, and who has to end then: one set of rules for all that decide it here.

- The job has succeeded when the chief has exited 0 or, without a chief, every worker has. Workers
  and evaluators may then finish by themselves for a while; parameter servers, which never return,
  are ended when nobody trains any more, and so are those that serve data.
- After a failure nobody is waited for. Parameter servers still come last, so that a chief can save
  what they hold.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from phalanx.cluster.spec import DATA_ROLES, Role, Task
from phalanx.launch.base import TaskState

# They never return, and the others need them up to the end.
_SERVERS = DATA_ROLES | {Role.PS}


@dataclass(frozen=True)
class Patience:
    """Seconds: from SIGTERM to SIGKILL, and how long tasks may go on after the job's success."""

    grace: float = 30.0
    linger: float = 10.0
    evaluator_linger: float = 600.0


def has_succeeded(states: Mapping[Task, TaskState]) -> bool:
    """Whether those whose success decides have succeeded.

    >>> has_succeeded({Task(Role.CHIEF): TaskState.DONE, Task(Role.PS): TaskState.RUNNING})
    True
    """
    deciding = [task for task in states if task.role is Role.CHIEF] or [
        task for task in states if task.role is Role.WORKER
    ]
    return all(states[task] is TaskState.DONE for task in deciding)


def time_left(task: Task, running: Collection[Task], failed: bool, patience: Patience) -> float:
    """How many seconds after the job was settled a task may run on.

    >>> time_left(Task(Role.WORKER), [Task(Role.WORKER)], False, Patience(linger=5))
    5
    """
    if task.role in _SERVERS:
        training = any(each.role in (Role.CHIEF, Role.WORKER) for each in running)
        return float("inf") if training else 0.0
    if failed:
        return 0.0
    return patience.evaluator_linger if task.role is Role.EVALUATOR else patience.linger


def signed_exit(code: int) -> int:
    """A shell's exit code, with minus the number of the signal in place of 128 + it.

    >>> signed_exit(137), signed_exit(1), signed_exit(255)
    (-9, 1, 255)
    """
    return 128 - code if 128 < code < 160 else code


def describe_exit(code: int | None) -> str:
    """An exit code in words; None if nobody knows it.

    >>> describe_exit(-9)
    'was killed by SIGKILL (the system does that when memory runs out)'
    """
    if code is None:
        return "failed"
    if code >= 0:
        return f"failed with exit code {code}"
    known = -code in set(signal.Signals)
    name = signal.Signals(-code).name if known else f"signal {-code}"
    hint = " (the system does that when memory runs out)" if code == -signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def describe_failure(task: Task, code: int | None, restarts: int) -> str:
    """Why a job has failed, when a task has for good."""
    times = "once" if restarts == 1 else f"{restarts} times"
    return f"{task} {describe_exit(code)}" + (f", restarted {times}" if restarts else "")
