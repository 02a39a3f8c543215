"""A task's share of the examples: decided before anything is read or shuffled."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.cluster import Cluster, Role, Task
from phalanx.errors import DataError


@dataclass(frozen=True)
class Share:
    """One of `num_shards` equal parts of the examples."""

    num_shards: int = 1
    shard: int = 0


def share_of(cluster: Cluster, task: Task, *, chief_trains: bool = True) -> Share:
    """The share that a task trains on.

    >>> cluster = Cluster.of(chief="a:1", workers=["b:1", "c:1"], ps=["d:1"])
    >>> share_of(cluster, Task(Role.WORKER, 0))
    Share(num_shards=3, shard=1)

    A process on its own, and an evaluator, have the whole. With parameter servers the chief
    only coordinates: `chief_trains=False` leaves it out.
    """
    if task.role is Role.PS:
        raise DataError(f"{task} is a parameter server: it holds variables and reads no data")
    if task.role is Role.EVALUATOR or not cluster.addresses:
        return Share()
    roles = (Role.CHIEF, Role.WORKER) if chief_trains else (Role.WORKER,)
    tasks = sorted(each for each in cluster.addresses if each.role in roles)
    if task not in tasks:
        raise DataError(f"{task} is not one of the tasks that train: {', '.join(map(str, tasks))}")
    return Share(len(tasks), tasks.index(task))
