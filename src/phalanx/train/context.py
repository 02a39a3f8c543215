"""Context: which shard of the data a task reads, and in batches of which size."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Context:
    """Which shard of the data to read, and in batches of which size.

    >>> context = Context(num_shards=2, shard=1, batch_size=16, global_batch_size=32,
    ...                   num_replicas=2)
    >>> files = ["a", "b", "c", "d"]
    >>> files[context.shard :: context.num_shards]
    ['b', 'd']

    Attributes:
        num_shards: How many tasks read the data.
        shard: The index of this task among them, from 0.
        batch_size: How many examples one replica takes at a time: the argument for `batch`.
        global_batch_size: How many examples all replicas together take for one step.
        examples_per_update: How many examples one update of the weights is computed from: those of
            all replicas in synchronous training, those of one in asynchronous training.
        num_replicas: How many replicas are trained: the factor of the linear scaling rule.
        seed: The seed of the run, the same for every task.
        epoch: How many passes over the data a restarted run has completed.
        data_service: The address of the tf.data service dispatcher, if the job has data workers.
    """

    num_shards: int = 1
    shard: int = 0
    batch_size: int = 32
    global_batch_size: int = 32
    examples_per_update: int = 32
    num_replicas: int = 1
    seed: int | None = None
    epoch: int = 0
    data_service: str | None = None
