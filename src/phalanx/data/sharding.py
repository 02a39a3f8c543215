"""A task's share of the examples: decided before anything is read or shuffled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from phalanx.cluster import Cluster, Role, Task
from phalanx.errors import DataError


class Sharing(Protocol):
    """Whatever tells a share: a `Share`, or the context an experiment's functions are given."""

    @property
    def num_shards(self) -> int:
        """How many parts there are."""
        ...

    @property
    def shard(self) -> int:
        """Which of them it is, from 0."""
        ...


@dataclass(frozen=True)
class Share:
    """One of `num_shards` equal parts of the examples."""

    num_shards: int = 1
    shard: int = 0


def count_share(share: Sharing, start: int, stop: int) -> int:
    """How many of the examples from number `start` up to `stop` are in the share.

    >>> count_share(Share(num_shards=4, shard=1), 0, 10)
    3
    """
    first = start + (share.shard - start) % share.num_shards
    return len(range(first, stop, share.num_shards))


def share_of(cluster: Cluster, task: Task, *, chief_trains: bool = True) -> Share:
    """The share that a task trains on.

    >>> cluster = Cluster.of(chief="a:1", workers=["b:1", "c:1"], ps=["d:1"])
    >>> share_of(cluster, Task(Role.WORKER, 0))
    Share(num_shards=3, shard=1)

    A process on its own, and an evaluator, have the whole. `chief_trains=False` leaves out a chief
    that only coordinates, as it can with parameter servers.
    """
    if task.role is Role.PS:
        raise DataError(f"{task} is a parameter server: it holds variables and reads no data")
    if task.role is Role.EVALUATOR or not cluster.addresses:
        return Share()
    tasks = cluster.trainers(chief_trains=chief_trains)
    if task not in tasks:
        raise DataError(f"{task} is not one of the tasks that train: {', '.join(map(str, tasks))}")
    return Share(len(tasks), tasks.index(task))
