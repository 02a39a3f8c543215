"""PHALANX_SHAPE: how many tasks of each role a job has.

Slurm and Kubernetes number their processes and know nothing of roles. The shape says which number
is whom: the chief first, then the workers, the ps, the evaluators, and those that serve data.
Elsewhere it tells the chief that an evaluator is there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from phalanx.cluster.spec import Role, Task
from phalanx.errors import ClusterError

VARIABLE = "PHALANX_SHAPE"
PORT_VARIABLE = "PHALANX_PORT"


def parse_shape(text: str) -> list[Task]:
    """The tasks in the order in which they are numbered.

    >>> [str(task) for task in parse_shape("chief=1,worker=2,ps=1")]
    ['chief-0', 'worker-0', 'worker-1', 'ps-0']
    """
    counts: dict[Role, int] = {}
    for part in text.split(","):
        name, equals, count = part.strip().partition("=")
        if not equals or not count.isdecimal():
            raise ClusterError(
                f"{VARIABLE} is {text!r}: write counts by role, as in chief=1,worker=2,ps=1"
            )
        counts[Role.parse_any(name)] = int(count)
    if counts.get(Role.CHIEF, 0) > 1:
        raise ClusterError(f"{VARIABLE} is {text!r}: a cluster has one chief at the most")
    return [Task(role, index) for role in Role for index in range(counts.get(role, 0))]


def shape_variables(tasks: Iterable[Task]) -> dict[str, str]:
    """The variable, for these tasks.

    >>> shape_variables([Task(Role.CHIEF), Task(Role.WORKER, 0), Task(Role.WORKER, 1)])
    {'PHALANX_SHAPE': 'chief=1,worker=2'}
    """
    counts = Counter(task.role for task in tasks)
    return {VARIABLE: ",".join(f"{role}={count}" for role, count in counts.items())}


def has_evaluator(environ: Mapping[str, str]) -> bool:
    """Whether the shape has an evaluator, of which TF_CONFIG does not tell the others."""
    text = environ.get(VARIABLE, "")
    return bool(text) and any(task.role is Role.EVALUATOR for task in parse_shape(text))


def read_port(environ: Mapping[str, str], default: int) -> int:
    """PHALANX_PORT if it is set."""
    text = environ.get(PORT_VARIABLE) or str(default)
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ClusterError(f"{PORT_VARIABLE} is {text!r}: set it to a port from 1 to 65535")
    return int(text)


def place(tasks: list[Task], number: int, source: str) -> Task:
    """The task that process `number` is; `source` says in errors where the number was read."""
    if number >= len(tasks):
        raise ClusterError(
            f"{source} is {number}, but {VARIABLE} has {len(tasks)} tasks, numbered from 0: "
            f"make them as many as there are processes"
        )
    return tasks[number]
