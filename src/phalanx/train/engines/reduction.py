"""Sums over all replicas of all hosts."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.engines.communication import Communication
from phalanx.train.step.step_function import StepResult
from phalanx.train.types import Tensor, TFStrategy
from phalanx.train.variables.flat_layout import Buffer
from phalanx.train.variables.index_shard import Sightings
from phalanx.train.variables.sparse_tables import merge_rows


class Reduction:
    """The all-reduce of a `tf.distribute` strategy, which is used for nothing else.

    Models run outside of the strategy, so that Keras does not see it and a loss has the same value
    on one replica and on many.
    """

    def __init__(
        self,
        tf_strategy: TFStrategy,
        hosts: int = 1,
        host: int = 0,
        communication: Communication | None = None,
    ) -> None:
        self._strategy = tf_strategy
        self._communication = communication or Communication()
        self.replicas: int = tf_strategy.num_replicas_in_sync
        self.local: int = max(1, self.replicas // hosts)
        self._host = host

    def replica(self, index: int) -> int:
        """Return the number of a local replica among all replicas."""
        return self._host * self.local + index

    @unconverted
    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Sum over all replicas; takes and returns one tensor for each local replica."""
        add, options = tf.distribute.ReduceOp.SUM, self._communication.options
        return self._exchange(
            tensors, lambda context, local: context.all_reduce(add, local, options)
        )

    @unconverted
    def gather(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Concatenate the rows of all replicas; each may have another number of them."""
        options = self._communication.options
        return self._exchange(
            tensors, lambda context, local: context.all_gather(local, axis=0, options=options)
        )

    @unconverted
    def _exchange(
        self, tensors: Sequence[Tensor], collective: Callable[[Any, Tensor], Tensor]
    ) -> list[Tensor]:
        if self.replicas == 1:
            return list(tensors)

        def exchange() -> Tensor:
            context = tf.distribute.get_replica_context()
            replica = int(tf.get_static_value(context.replica_id_in_sync_group))
            return collective(context, tf.identity(tensors[replica % self.local]))

        return list(self._strategy.experimental_local_results(self._strategy.run(exchange)))

    @unconverted
    def sum_of_hosts(self, tensor: Tensor) -> Tensor:
        """Sum one tensor of each host; of booleans, return whether any is true."""
        # Collective operations sum no other types.
        is_supported = tensor.dtype.is_floating or tensor.dtype in (tf.int32, tf.int64)
        wide = tensor if is_supported else tf.cast(tensor, tf.int64)
        others = [tf.zeros_like(wide)] * (self.local - 1)
        return tf.cast(self.sum([wide, *others])[0], tensor.dtype)

    @unconverted
    def sum_contributions(
        self, contributions: list[StepResult], buffers: Sequence[Buffer]
    ) -> list[StepResult]:
        """All-reduce what is dense, by default in one transfer; exchange only rows of what is not.

        Takes and returns one contribution for each local replica, with a gradient of each buffer.
        """
        if self.replicas == 1:
            return contributions
        gradients = contributions[0].gradients
        sparse = [
            i for i, gradient in enumerate(gradients) if isinstance(gradient, tf.IndexedSlices)
        ]
        dense = self._sum_dense(
            [[c.report, *filter(_is_float, c.state)] for c in contributions],
            [[g for i, g in enumerate(c.gradients) if i not in sparse] for c in contributions],
        )
        rows = self.sum_rows(
            [[contribution.gradients[i] for i in sparse] for contribution in contributions],
            [buffers[i] for i in sparse],
        )
        summed = []
        integers = self._choose_integers(contributions)
        seen = self._gather_sightings(contributions)
        for (sums, dense_sums), row_sums, exact, sightings in zip(
            dense, rows, integers, seen, strict=True
        ):
            report, *floats = sums
            by_buffer = [
                row_sums.pop(0) if index in sparse else dense_sums.pop(0)
                for index in range(len(gradients))
            ]
            state = [
                floats.pop(0) if _is_float(value) else exact.pop(0)
                for value in contributions[0].state
            ]
            summed.append(StepResult(by_buffer, state, report, sightings))
        return summed

    @unconverted
    def _sum_dense(
        self, others: list[list[Tensor]], gradients: list[list[Tensor]]
    ) -> list[tuple[list[Tensor], list[Tensor]]]:
        """Sum the gradients, and what else each local replica contributes."""
        count = len(others[0])
        if not self._communication.splits_gradients:
            joined = [[*first, *second] for first, second in zip(others, gradients, strict=True)]
            return [(sums[:count], sums[count:]) for sums in self._sum_flat(joined)]
        summed: list[list[Tensor]] = [[] for _ in gradients]
        sizes = [g.shape.num_elements() * g.dtype.size for g in gradients[0]]
        for pack in self._communication.split(sizes):
            sums = self._sum_flat([local[pack] for local in gradients], compresses=True)
            for gathered, part in zip(summed, sums, strict=True):
                gathered.extend(part)
        return list(zip(self._sum_flat(others), summed, strict=True))

    @unconverted
    def _sum_flat(
        self, tensors: list[list[Tensor]], compresses: bool = False
    ) -> list[list[Tensor]]:
        """Sum the tensors of each local replica, in one transfer."""
        wide = tf.float64 if any(t.dtype == tf.float64 for t in tensors[0]) else tf.float32
        sizes = [t.shape.num_elements() for t in tensors[0]]
        vectors = [
            tf.concat([tf.reshape(tf.cast(t, wide), [-1]) for t in local], 0) for local in tensors
        ]
        if compresses and self._communication.compress is not None:
            examples = tf.cast(self._communication.examples, wide)
            halves = [tf.cast(v / examples, self._communication.compress) for v in vectors]
            sums = [tf.cast(half, wide) * examples for half in self.sum(halves)]
        else:
            sums = self.sum(vectors)
        return [
            [
                tf.cast(tf.reshape(part, tensor.shape), tensor.dtype)
                for part, tensor in zip(tf.split(vector, sizes), local, strict=True)
            ]
            for vector, local in zip(sums, tensors, strict=True)
        ]

    @unconverted
    def _gather_sightings(self, contributions: list[StepResult]) -> list[list[Sightings]]:
        """Return the ids that all replicas have looked up, for each local replica."""
        buffers = len(contributions[0].sightings)
        if not buffers:
            return [[] for _ in contributions]
        packed = []
        for contribution in contributions:
            # A row of no buffer: TensorFlow crashes if it gathers a matrix without rows.
            parts = [tf.constant([[buffers, 0, 0]], tf.int64)]
            for number, seen in enumerate(contribution.sightings):
                labels = tf.fill(tf.shape(seen.ids), tf.constant(number, tf.int64))
                parts.append(tf.stack([labels, seen.ids, seen.counts], 1))
            packed.append(tf.concat(parts, 0))
        gathered = []
        for matrix in self.gather(packed):
            labels = tf.cast(matrix[:, 0], tf.int32)
            parts = tf.dynamic_partition(matrix[:, 1:], labels, buffers + 1)[:-1]
            gathered.append([Sightings.merge(part[:, 0], part[:, 1]) for part in parts])
        return gathered

    @unconverted
    def sum_rows(
        self, contributions: Sequence[Sequence[Tensor]], buffers: Sequence[Buffer]
    ) -> list[list[Tensor]]:
        """Sum sparse gradients over all replicas, with one transfer for each width of rows.

        The entries of weights that are looked up are only collected.

        Takes and returns the gradients of these buffers for each local replica.
        """
        summed: list[list[Tensor]] = [[None] * len(buffers) for _ in contributions]
        groups: dict[tuple[int, str, bool], list[int]] = {}
        for position, buffer in enumerate(buffers):
            width = math.prod(buffer.shape[1:])
            groups.setdefault((width, buffer.dtype, buffer.looked_up), []).append(position)
        for positions in groups.values():
            packing = RowPacking([buffers[position] for position in positions])
            packed = [packing.pack([rows[i] for i in positions]) for rows in contributions]
            for replica, rows in enumerate(self.gather(packed)):
                for position, gradient in zip(positions, packing.unpack(rows), strict=True):
                    summed[replica][position] = gradient
        return summed

    @unconverted
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


@dataclass(frozen=True)
class RowPacking:
    """Sparse gradients of buffers with rows of the same width, as one matrix.

    A row of the matrix is a row of a gradient, and behind it the bits of its index, counted over
    all buffers. So one transfer exchanges the rows of many tables.
    """

    buffers: Sequence[Buffer]

    def pack(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return a matrix that holds each row once, or as often as it was looked up."""
        starts = self._starts()
        indices = [g.indices + start for g, start in zip(gradients, starts, strict=False)]
        values = tf.concat([tf.reshape(g.values, [-1, self._width]) for g in gradients], 0)
        values = tf.cast(values, tf.float64 if values.dtype == tf.float64 else tf.float32)
        merged = self._merge(tf.IndexedSlices(values, tf.concat(indices, 0)))
        # A row of no buffer: TensorFlow crashes if it gathers a matrix without rows.
        values = tf.pad(merged.values, [[0, 1], [0, 0]])
        bits = tf.bitcast(tf.concat([merged.indices, starts[-1:]], 0), values.dtype)
        return tf.concat([values, tf.reshape(bits, [-1, 8 // values.dtype.size])], 1)

    def unpack(self, rows: Tensor) -> list[Tensor]:
        """Return a gradient of each buffer."""
        indices = tf.reshape(tf.bitcast(_squeeze(rows[:, self._width :]), tf.int64), [-1])
        merged = self._merge(tf.IndexedSlices(rows[:, : self._width], indices))
        starts = tf.constant(self._starts(), tf.int64)
        owner = tf.searchsorted(starts, merged.indices, side="right") - 1
        local = merged.indices - tf.gather(starts, owner)
        values = tf.dynamic_partition(merged.values, owner, len(self.buffers) + 1)
        indices = tf.dynamic_partition(local, owner, len(self.buffers) + 1)
        return [
            tf.IndexedSlices(
                tf.cast(tf.reshape(values[number], [-1, *buffer.shape[1:]]), buffer.dtype),
                indices[number],
                tf.constant(buffer.shape, tf.int64),
            )
            for number, buffer in enumerate(self.buffers)
        ]

    def _merge(self, gradient: Tensor) -> Tensor:
        return gradient if self.buffers[0].looked_up else merge_rows(gradient)

    @property
    def _width(self) -> int:
        return math.prod(self.buffers[0].shape[1:])

    def _starts(self) -> list[int]:
        """The index of the first row of each buffer, and of what follows the last one."""
        return [0, *itertools.accumulate(buffer.shape[0] for buffer in self.buffers)]


def _squeeze(bits: Tensor) -> Tensor:
    # A cast between types of equal size keeps the last dimension.
    return tf.squeeze(bits, 1) if bits.dtype.size == 8 else bits


def _is_float(tensor: Tensor) -> bool:
    return bool(tensor.dtype.is_floating)


def _integers(contribution: StepResult) -> list[Tensor]:
    """Return the integers in the state, such as counters, which are not averaged."""
    return [value for value in contribution.state if not _is_float(value)]
