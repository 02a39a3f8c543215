"""The PHALANX_* variables with which a launcher describes a job to its tasks.

PHALANX_SHAPE         how many tasks of each role the job has: chief=1,worker=2,ps=1
PHALANX_PORT          the port that tasks listen on, where the address does not come from TF_CONFIG
PHALANX_DATA_SERVICE  the address of the tf.data service dispatcher, if the job has one

Slurm and Kubernetes number processes and have no roles: there the shape maps each number to a task.
With any launcher the shape tells the chief whether an evaluator exists.
"""

import os
from collections import Counter
from collections.abc import Iterable, Mapping

from phalanx.cluster.spec import Role, Task
from phalanx.errors import ClusterError

SHAPE_VARIABLE = "PHALANX_SHAPE"
RESTARTS_VARIABLE = "PHALANX_RESTARTS"
"""How often the launcher restarts a task that fails."""
GRACE_VARIABLE = "PHALANX_GRACE"
"""How many seconds tasks have to save after SIGTERM, before the launcher kills them."""
DEFAULT_GRACE = 30.0
PORT_VARIABLE = "PHALANX_PORT"
DATA_SERVICE_VARIABLE = "PHALANX_DATA_SERVICE"

JOB_ID_VARIABLE = "PHALANX_JOB_ID"
"""What all starts of the tasks of a job have in common, on hosts other than the launcher's."""

_RUN_ID_VARIABLES = ("PHALANX_RUN_ID", JOB_ID_VARIABLE)
"""Each of them tells two starts of one job from two jobs."""


def read_run_id(environ: Mapping[str, str] = os.environ) -> str:
    """Return what all starts of the tasks of a job have in common; empty without a launcher."""
    known = (environ.get(name, "") for name in (*_RUN_ID_VARIABLES, "SLURM_JOB_ID"))
    return next(filter(None, known), "")


def has_run_id(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the run id is that of one job; an allocation of Slurm may run several."""
    return any(environ.get(name) for name in _RUN_ID_VARIABLES)


def parse_shape(text: str) -> list[Task]:
    """Return the tasks of a shape, in the order in which they are numbered.

    >>> [str(task) for task in parse_shape("chief=1,worker=2,ps=1")]
    ['chief-0', 'worker-0', 'worker-1', 'ps-0']
    """
    counts: dict[Role, int] = {}
    for part in text.split(","):
        name, equals, count = part.strip().partition("=")
        if not equals or not count.isdecimal():
            fix = "write counts by role, as in chief=1,worker=2,ps=1"
            raise ClusterError(f"{SHAPE_VARIABLE} is {text!r}: {fix}")
        counts[Role.parse_any(name)] = int(count)
    if counts.get(Role.CHIEF, 0) > 1:
        raise ClusterError(f"{SHAPE_VARIABLE} is {text!r}: a cluster has at most one chief")
    return [Task(role, index) for role in Role for index in range(counts.get(role, 0))]


def shape_variables(tasks: Iterable[Task]) -> dict[str, str]:
    """Return the environment variable that describes these tasks.

    >>> shape_variables([Task(Role.CHIEF), Task(Role.WORKER, 0), Task(Role.WORKER, 1)])
    {'PHALANX_SHAPE': 'chief=1,worker=2'}
    """
    counts = Counter(task.role for task in tasks)
    return {SHAPE_VARIABLE: ",".join(f"{role}={count}" for role, count in counts.items())}


def has_evaluator(environ: Mapping[str, str]) -> bool:
    """Whether the job has an evaluator; the TF_CONFIG of the other tasks does not contain it."""
    text = environ.get(SHAPE_VARIABLE, "")
    return bool(text) and any(task.role is Role.EVALUATOR for task in parse_shape(text))


def find_task(tasks: list[Task], number: int, source: str) -> Task:
    """Return the task of process `number`; errors call the origin of the number `source`."""
    if number >= len(tasks):
        known = f"{SHAPE_VARIABLE} has {len(tasks)} tasks, numbered from 0"
        fix = "set the shape to as many tasks as there are processes"
        raise ClusterError(f"{source} is {number}, but {known}: {fix}")
    return tasks[number]


def read_port(environ: Mapping[str, str], default: int) -> int:
    text = environ.get(PORT_VARIABLE) or str(default)
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ClusterError(f"{PORT_VARIABLE} is {text!r}: set it to a port from 1 to 65535")
    return int(text)


def find_dispatcher(environ: Mapping[str, str]) -> str | None:
    """Return the address of the tf.data service dispatcher, if the launcher has set one."""
    return environ.get(DATA_SERVICE_VARIABLE) or None


def grace_variables(grace: float) -> dict[str, str]:
    """Return the variable that tells tasks how long they have to save, unless it is the usual."""
    return {} if grace == DEFAULT_GRACE else {GRACE_VARIABLE: f"{grace:g}"}


def read_grace(environ: Mapping[str, str], default: float) -> float:
    """Return how many seconds tasks have after SIGTERM, or the default if no launcher says it."""
    try:
        return float(environ.get(GRACE_VARIABLE) or default)
    except ValueError:
        return default


def restart_variables(restarts: int) -> dict[str, str]:
    """Return the variable that tells tasks that their launcher restarts them, if it does."""
    return {RESTARTS_VARIABLE: str(restarts)} if restarts else {}


def will_be_restarted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a launcher starts this task again when it fails."""
    return environ.get(RESTARTS_VARIABLE, "0") not in ("", "0")
