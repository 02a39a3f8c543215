"""Roles, tasks and clusters: plain data that every other part of Phalanx shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from phalanx.errors import ClusterError


class Role(StrEnum):
    """What a task does in its job.

    The dispatcher and the data workers run tf.data service. They are part of a job, but not of the
    cluster in TF_CONFIG.
    """

    CHIEF = "chief"
    WORKER = "worker"
    PS = "ps"
    EVALUATOR = "evaluator"
    DISPATCHER = "dispatcher"
    DATA_WORKER = "data-worker"

    @classmethod
    def parse(cls, name: str) -> Role:
        """Return the role with this name in TF_CONFIG; `master` is an older name of the chief."""
        if name == "master":
            return cls.CHIEF
        if name in DATA_ROLES or name not in list(cls):
            raise ClusterError(
                f"there is no role {name!r}: the roles are chief (or master), "
                "worker, ps and evaluator"
            )
        return cls(name)

    @classmethod
    def parse_any(cls, name: str) -> Role:
        """Return the role with this name, which may also be one of tf.data service."""
        return cls(name) if name in DATA_ROLES else cls.parse(name)


DATA_ROLES = frozenset({Role.DISPATCHER, Role.DATA_WORKER})
"""The roles of tf.data service: one dispatcher, and its data workers."""

PEERS = frozenset({Role.CHIEF, Role.WORKER, Role.PS})
"""The roles that `tf.distribute` connects with each other."""

_ORDER = {role: position for position, role in enumerate(Role)}


@dataclass(frozen=True)
class Task:
    """One process of a job: its role, and its index among the tasks of that role.

    >>> str(Task(Role.WORKER, 1))
    'worker-1'
    """

    role: Role
    index: int = 0

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"

    @classmethod
    def parse(cls, name: str) -> Task:
        """Return the task with this name.

        >>> Task.parse("data-worker-1") == Task(Role.DATA_WORKER, 1)
        True
        """
        role, _, index = name.rpartition("-")
        return cls(Role(role), int(index))

    def __lt__(self, other: Task) -> bool:
        return (_ORDER[self.role], self.index) < (_ORDER[other.role], other.index)


def count_roles(tasks: Iterable[Task]) -> str:
    """Describe how many tasks of each role there are.

    >>> count_roles([Task(Role.CHIEF), Task(Role.WORKER, 0), Task(Role.WORKER, 1)])
    '1 chief, 2 workers'
    """
    counts = Counter(task.role for task in tasks)
    return ", ".join(
        f"{count} {role}{'s' * (count > 1 and role is not Role.PS)}"
        for role, count in counts.items()
    )


@dataclass(frozen=True)
class Cluster:
    """The address of every task. An empty cluster is a single process.

    >>> cluster = Cluster.of(workers=["a:2222", "b:2222"], ps=["c:2222"])
    >>> cluster.hosts(Role.WORKER)
    ['a:2222', 'b:2222']
    >>> str(cluster.chief())
    'worker-0'

    A sparse cluster, in which a task knows only some of its peers, lacks the indices of the others.

    Args:
        addresses: The address `host:port` of each task.
    """

    addresses: Mapping[Task, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        *,
        chief: str | None = None,
        workers: Iterable[str] = (),
        ps: Iterable[str] = (),
        evaluators: Iterable[str] = (),
    ) -> Cluster:
        """Make a cluster from the addresses of each role, indexed in the order given.

        Args:
            chief: The address of the chief, if there is one.
            workers: The addresses of the workers.
            ps: The addresses of the parameter servers.
            evaluators: The addresses of the evaluators.

        Returns:
            The cluster.
        """
        by_role = {
            Role.CHIEF: [chief] if chief is not None else [],
            Role.WORKER: workers,
            Role.PS: ps,
            Role.EVALUATOR: evaluators,
        }
        return cls(
            {
                Task(role, index): address
                for role, addresses in by_role.items()
                for index, address in enumerate(addresses)
            }
        )

    def tasks(self, *roles: Role) -> list[Task]:
        """Return the tasks of these roles, or of all roles if none is given, by role and index."""
        return sorted(task for task in self.addresses if not roles or task.role in roles)

    def trainers(self, *, chief_trains: bool = True) -> list[Task]:
        """Return the tasks that compute gradients, in the order of their shards: chief first.

        Args:
            chief_trains: False leaves out a chief that only coordinates parameter servers.
        """
        tasks = self.tasks(Role.CHIEF, Role.WORKER)
        return tasks if chief_trains else [task for task in tasks if task != self.chief()]

    def hosts(self, role: Role) -> list[str]:
        """Return the addresses of a role's tasks, by index."""
        return [self.addresses[task] for task in self.tasks(role)]

    def chief(self) -> Task:
        """Return the task that acts as chief: worker 0 in a cluster without a chief."""
        if self.tasks(Role.CHIEF) or not self.tasks(Role.WORKER):
            return Task(Role.CHIEF)
        return Task(Role.WORKER)

    def without_evaluators(self) -> Cluster:
        """Return the cluster for `tf.distribute`, which waits forever for a listed evaluator."""
        return Cluster(
            {task: at for task, at in self.addresses.items() if task.role is not Role.EVALUATOR}
        )


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[ipv6]:port` into host and port.

    >>> split_address("[::1]:2222")
    ('::1', 2222)
    """
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
