"""Sums over all replicas of all hosts."""

from collections.abc import Sequence

import tensorflow as tf

from phalanx.train.step.step_function import StepResult
from phalanx.train.types import Tensor, TFStrategy
from phalanx.train.variables.flat_layout import Buffer


class Reduction:
    """The all-reduce of a `tf.distribute` strategy, which is used for nothing else.

    Models run outside of the strategy, so that Keras does not see it and a loss has the same value
    on one replica and on many.
    """

    def __init__(self, tf_strategy: TFStrategy, hosts: int = 1, host: int = 0) -> None:
        self._strategy = tf_strategy
        self.replicas: int = tf_strategy.num_replicas_in_sync
        self.local: int = max(1, self.replicas // hosts)
        self._host = host

    def replica(self, index: int) -> int:
        """Return the number of a local replica among all replicas."""
        return self._host * self.local + index

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
        """Sum one tensor of each host; of booleans, return whether any is true."""
        # Collective operations sum no other types.
        is_supported = tensor.dtype.is_floating or tensor.dtype in (tf.int32, tf.int64)
        wide = tensor if is_supported else tf.cast(tensor, tf.int64)
        others = [tf.zeros_like(wide)] * (self.local - 1)
        return tf.cast(self.sum([wide, *others])[0], tensor.dtype)

    def sum_contributions(
        self, contributions: list[StepResult], buffers: Sequence[Buffer]
    ) -> list[StepResult]:
        """All-reduce everything in one transfer; sparse gradients are sent as dense ones.

        Takes and returns one contribution for each local replica, with a gradient of each buffer.
        """
        if self.replicas == 1:
            return contributions
        nested = [
            (
                contribution.report,
                [_to_dense(g, b) for g, b in zip(contribution.gradients, buffers, strict=True)],
                contribution.state,
            )
            for contribution in contributions
        ]
        vectors = []
        for structure in nested:
            floats = [t for t in tf.nest.flatten(structure) if t.dtype.is_floating]
            wide = tf.float64 if any(t.dtype == tf.float64 for t in floats) else tf.float32
            vectors.append(tf.concat([tf.reshape(tf.cast(t, wide), [-1]) for t in floats], 0))
        summed = []
        integers = self._choose_integers(contributions)
        for vector, structure, exact in zip(self.sum(vectors), nested, integers, strict=True):
            report, gradients, state = _split_like(vector, structure)
            sparse = [_to_sparse(g, b) for g, b in zip(gradients, buffers, strict=True)]
            state = [v if v.dtype.is_floating else exact.pop(0) for v in state]
            summed.append(StepResult(sparse, state, report))
        return summed

    def _choose_integers(self, contributions: list[StepResult]) -> list[list[Tensor]]:
        """Return, for each local replica, the integer state of the first replica with examples."""
        if not _integers(contributions[0]):
            return [[] for _ in contributions]
        tables = []
        for index, contribution in enumerate(contributions):
            has_examples = tf.cast(contribution.report[:1] > 0, tf.int64)
            values = [tf.reshape(tf.cast(v, tf.int64), [-1]) for v in _integers(contribution)]
            row = tf.one_hot(self.replica(index), self.replicas, dtype=tf.int64)
            tables.append(row[:, None] * tf.concat([has_examples, *values], 0))
        chosen = []
        for table, contribution in zip(self.sum(tables), contributions, strict=True):
            values = _integers(contribution)
            first = table[tf.argmax(table[:, 0])]
            parts = tf.split(first, [1, *(v.shape.num_elements() for v in values)])[1:]
            chosen.append(
                [
                    tf.cast(tf.reshape(part, value.shape), value.dtype)
                    for part, value in zip(parts, values, strict=True)
                ]
            )
        return chosen


Dense = Tensor | tuple[Tensor, Tensor]
"""A dense gradient; or, of a sparse one, the sum of each row and how often it was looked up."""
Nested = tuple[Tensor, list[Dense], list[Tensor]]


def _to_dense(gradient: Tensor, buffer: Buffer) -> Dense:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    ones = tf.ones_like(gradient.indices, gradient.values.dtype)
    return (
        tf.math.unsorted_segment_sum(gradient.values, gradient.indices, buffer.shape[0]),
        tf.math.unsorted_segment_sum(ones, gradient.indices, buffer.shape[0]),
    )


def _to_sparse(gradient: Dense, buffer: Buffer) -> Tensor:
    if not isinstance(gradient, tuple):
        return gradient
    values, lookups = gradient
    indices = tf.where(lookups > 0)[:, 0]
    shape = tf.constant(buffer.shape, tf.int64)
    return tf.IndexedSlices(tf.gather(values, indices), indices, shape)


def _integers(contribution: StepResult) -> list[Tensor]:
    return [value for value in contribution.state if not value.dtype.is_floating]


def _split_like(vector: Tensor, structure: Nested) -> Nested:
    """Split a vector into the floats of a structure; integers, such as counters, stay as is."""
    tensors = tf.nest.flatten(structure)
    sizes = [t.shape.num_elements() for t in tensors if t.dtype.is_floating]
    parts = iter(tf.split(vector, sizes))
    split = [
        tf.cast(tf.reshape(next(parts), tensor.shape), tensor.dtype)
        if tensor.dtype.is_floating
        else tensor
        for tensor in tensors
    ]
    return tf.nest.pack_sequence_as(structure, split)  # type: ignore[no-any-return]
