"""The share of the examples that each task reads, chosen before reading and shuffling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from phalanx.cluster import Cluster, Role, Task
from phalanx.errors import DataError


class ShardInfo(Protocol):
    """An object with a shard: a `Share`, or the context of an experiment."""

    @property
    def num_shards(self) -> int: ...

    @property
    def shard(self) -> int: ...


@dataclass(frozen=True)
class Share:
    """One of `num_shards` equal parts of the examples, numbered by `shard` from 0."""

    num_shards: int = 1
    shard: int = 0


def count_share(share: ShardInfo, start: int, stop: int) -> int:
    """The number of examples from number `start` up to `stop` that are in the share.

    >>> count_share(Share(num_shards=4, shard=1), 0, 10)
    3
    """
    first = start + (share.shard - start) % share.num_shards
    return len(range(first, stop, share.num_shards))


def share_of(cluster: Cluster, task: Task, *, chief_trains: bool = True) -> Share:
    """The share of the examples that a task trains on.

    >>> cluster = Cluster.of(chief="a:1", workers=["b:1", "c:1"], ps=["d:1"])
    >>> share_of(cluster, Task(Role.WORKER, 0))
    Share(num_shards=3, shard=1)

    Args:
        cluster: The cluster; empty for a single process.
        task: The task.
        chief_trains: Whether the chief trains too; with parameter servers it may only coordinate.

    Returns:
        The share; a single process and an evaluator read all examples.

    Raises:
        DataError: The task does not train.
    """
    if task.role is Role.PS:
        raise DataError(f"{task} is a parameter server: it holds variables and reads no data")
    if task.role is Role.EVALUATOR or not cluster.addresses:
        return Share()
    tasks = cluster.trainers(chief_trains=chief_trains)
    if task not in tasks:
        raise DataError(f"{task} is not one of the tasks that train: {', '.join(map(str, tasks))}")
    return Share(len(tasks), tasks.index(task))
