"""Sums over all replicas of all hosts."""

from collections.abc import Sequence

import tensorflow as tf

from phalanx.train.types import Tensor, TFStrategy


class Reduction:
    """The all-reduce of a `tf.distribute` strategy, which is used for nothing else.

    Models run outside of the strategy, so that Keras does not see it and a loss has the same value
    on one replica and on many.
    """

    def __init__(self, tf_strategy: TFStrategy, hosts: int = 1) -> None:
        self._strategy = tf_strategy
        self.replicas: int = tf_strategy.num_replicas_in_sync
        self.local: int = max(1, self.replicas // hosts)

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sum over all replicas; takes and returns one tensor for each local replica."""
        if self.replicas == 1:
            return list(tensors)

        def add() -> Tensor:
            context = tf.distribute.get_replica_context()
            replica = int(tf.get_static_value(context.replica_id_in_sync_group))
            local = tf.identity(tensors[replica % self.local])
            return context.all_reduce(tf.distribute.ReduceOp.SUM, local)

        return list(self._strategy.experimental_local_results(self._strategy.run(add)))

    def sum_of_hosts(self, tensor: Tensor) -> Tensor:
        """Sum one tensor of each host."""
        others = [tf.zeros_like(tensor)] * (self.local - 1)
        return self.sum([tensor, *others])[0]
