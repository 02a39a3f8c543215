"""When a job has succeeded, and when each of its tasks must end: the rules of every job controller.

- The job has succeeded when the chief has exited with 0 or, without a chief, every worker has.
  Workers and evaluators may then finish by themselves for a while. Parameter servers and the tasks
  of tf.data service never return; they are ended when no chief or worker runs any more.
- After a failure all tasks are ended at once. Parameter servers still come last, so that a chief
  can save their variables.
"""

import math
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from phalanx.cluster.job_environment import DEFAULT_GRACE
from phalanx.cluster.spec import DATA_ROLES, Role, Task
from phalanx.launch.base import TaskState

# They never return, and the others need them up to the end.
SERVERS = DATA_ROLES | {Role.PS}


@dataclass(frozen=True)
class GracePeriods:
    """Seconds from SIGTERM to SIGKILL, and for workers and evaluators after the job's success."""

    grace: float = DEFAULT_GRACE
    linger: float = 10.0
    evaluator_linger: float = 600.0


def deciding_tasks(tasks: Collection[Task]) -> list[Task]:
    """Return the tasks whose success is the job's: the chief or, without one, the workers."""
    chiefs = [task for task in tasks if task.role is Role.CHIEF]
    return chiefs or [task for task in tasks if task.role is Role.WORKER]


def has_succeeded(states: Mapping[Task, TaskState]) -> bool:
    return all(states[task] is TaskState.DONE for task in deciding_tasks(states))


def late_tasks(states: Mapping[Task, TaskState]) -> list[Task]:
    """Return the deciding tasks that still run although another one has succeeded."""
    deciding = deciding_tasks(states)
    if not any(states[task] is TaskState.DONE for task in deciding):
        return []
    return [task for task in deciding if states[task] is TaskState.RUNNING]


def time_left(
    task: Task, running: Collection[Task], failed: bool, grace_periods: GracePeriods
) -> float:
    """Return how many seconds after the job has succeeded or failed the task must be ended."""
    if task.role in SERVERS:
        training = any(each.role in (Role.CHIEF, Role.WORKER) for each in running)
        return math.inf if training else 0.0
    if failed:
        return 0.0
    return grace_periods.evaluator_linger if task.role is Role.EVALUATOR else grace_periods.linger


def decode_exit_code(code: int) -> int:
    """Return the exit code, with minus the signal's number in place of a shell's 128 + n."""
    return 128 - code if 128 < code < 160 else code


def describe_exit(code: int | None) -> str:
    if code is None:
        return "failed"
    if code >= 0:
        return f"failed with exit code {code}"
    known = -code in set(signal.Signals)
    name = signal.Signals(-code).name if known else f"signal {-code}"
    hint = " (the system does that when memory runs out)" if code == -signal.SIGKILL else ""
    return f"was killed by {name}{hint}"


def describe_failure(task: Task, code: int | None, restarts: int) -> str:
    """Describe why the job has failed, when this task has failed for the last time."""
    times = "once" if restarts == 1 else f"{restarts} times"
    return f"{task} {describe_exit(code)}" + (f", restarted {times}" if restarts else "")
