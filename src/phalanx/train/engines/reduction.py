"""Sums over all replicas of all hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from phalanx.train.variables.flat_layout import Tensor


class Reduction:
    """All that a strategy is used for. Models are run outside of it, so that Keras sees no strategy
    and a loss is the same number on one replica and on many.
    """

    def __init__(self, strategy: Any, hosts: int = 1) -> None:
        self._strategy = strategy
        self.replicas: int = strategy.num_replicas_in_sync
        self.local: int = max(1, self.replicas // hosts)

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """From one tensor of each local replica to the sum over all, for each local replica."""
        if self.replicas == 1:
            return list(tensors)

        def add() -> Tensor:
            context = tf.distribute.get_replica_context()
            replica = int(tf.get_static_value(context.replica_id_in_sync_group))
            mine = tf.identity(tensors[replica % self.local])
            return context.all_reduce(tf.distribute.ReduceOp.SUM, mine)

        return list(self._strategy.experimental_local_results(self._strategy.run(add)))

    def sum_of_hosts(self, tensor: Tensor) -> Tensor:
        """The sum of one tensor of each host."""
        others = [tf.zeros_like(tensor)] * (self.local - 1)
        return self.sum([tensor, *others])[0]
