"""What an experiment's functions are told of the run they are part of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Context:
    """Which share of the data to read, and in which batches.

    >>> context = Context(num_shards=2, shard=1, batch_size=16, global_batch_size=32,
    ...                   num_replicas=2)
    >>> files = ["a", "b", "c", "d"]
    >>> files[context.shard :: context.num_shards]
    ['b', 'd']
    """

    num_shards: int = 1
    """How many tasks read the data."""

    shard: int = 0
    """Which of them this is, from 0."""

    batch_size: int = 32
    """What to give to `batch`: the examples that one replica takes at a time."""

    global_batch_size: int = 32
    """How many examples all replicas together put into one update."""

    examples_per_update: int = 32
    """How many examples one update is made of: all replicas' in step, one's asynchronously."""

    num_replicas: int = 1
    """How many models are trained side by side: the factor of the linear learning-rate rule."""

    seed: int | None = None
    """The run's seed, the same for every task."""

    data_service: str | None = None
    """Where the dispatcher of tf.data service is, if the job has data workers."""
