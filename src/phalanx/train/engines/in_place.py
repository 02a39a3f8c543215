"""Training with a `train_step` that updates weights while it runs, on all replicas at once."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.engines.lockstep import Lockstep
from phalanx.train.engines.reduction import Reduction
from phalanx.train.step.accumulation import average, has_examples, weight_by_examples
from phalanx.train.step.in_place import Perform
from phalanx.train.step.report_values import batch_length
from phalanx.train.step.step_function import StepFunction, StepResult
from phalanx.train.step.step_times import read_clock
from phalanx.train.types import Batch, DatasetIterator, ElementSpec, Tensor
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.flat_layout import Buffer

Exchange: TypeAlias = tuple[list[Tensor], Perform]
"""What a replica has computed, and what to do with the averages over all replicas."""


class InPlaceTraining:
    """Runs one step on every replica; each update in it waits for all replicas.

    A replica without examples takes part with an example of zeros, which counts for nothing: its
    peers would wait for it.
    """

    def __init__(
        self,
        step: StepFunction,
        copies: Sequence[DeviceVariables],
        devices: Sequence[str],
        reduction: Reduction,
    ) -> None:
        self._step = step
        self._copies = copies
        self._devices = devices
        self._reduction = reduction

    def train(
        self, iterator: DatasetIterator, step: Tensor, begun: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the summed report, which is zeros if the data has ended, local batches, and waits.

        The step begins at the time `begun`. Waits are the seconds until this task had its batches,
        and until its peers had theirs.
        """
        optionals = [iterator.get_next_as_optional() for _ in range(self._reduction.local)]
        arrived = read_clock(begun, [optional.has_value() for optional in optionals])
        batches = tf.add_n([tf.cast(optional.has_value(), tf.int32) for optional in optionals])
        if self._reduction.replicas == 1:
            (optional,) = optionals
            report = tf.cond(
                has_examples(optional),
                lambda: self._train_alone(optional.get_value(), step),
                lambda: tf.zeros([self._step.report_size]),
            )
            return report, batches, arrived - begun, tf.zeros_like(begun)
        counts = [_count_examples(optional) for optional in optionals]
        totals = self._reduction.sum(counts)
        report = tf.cond(
            totals[0] > 0,
            lambda: self._train_together(optionals, counts, totals, step),
            lambda: tf.zeros([self._step.report_size]),
        )
        return report, batches, arrived - begun, read_clock(arrived, totals[0]) - arrived

    def _train_alone(self, batch: Batch, step: Tensor) -> Tensor:
        (copy,) = self._copies
        result = self._step.train_in_place(
            copy, batch, 0, step, lambda tensors, perform: perform(copy, tensors)
        )
        copy.write_changing_state(result.state)
        return result.report

    def _train_together(
        self, optionals: list[Tensor], counts: list[Tensor], totals: list[Tensor], step: Tensor
    ) -> Tensor:
        spec = self._step.element_spec
        batches = [
            tf.cond(has_examples(optional), optional.get_value, partial(_make_dummy, spec))
            for optional in optionals
        ]
        exchange = partial(self._exchange, counts, totals)
        functions = [
            partial(self._train_replica, index, batch, step) for index, batch in enumerate(batches)
        ]
        if len(functions) == 1:
            results = [functions[0](lambda item: exchange([item]))]
        else:
            results = Lockstep[Exchange, StepResult](exchange).run(functions)
        contributions = [
            _mask(weight_by_examples(_set_count(result, count), self._copies[0]), count)
            for result, count in zip(results, counts, strict=True)
        ]
        summed = self._reduction.sum_contributions(contributions, [])
        for copy, total in zip(self._copies, summed, strict=False):
            with tf.device(copy.stores[0].device):
                copy.write_changing_state(average(total).state)
        return summed[0].report

    def _train_replica(
        self, index: int, batch: Batch, step: Tensor, exchange: Callable[[Exchange], None]
    ) -> StepResult:
        copy = self._copies[index % len(self._copies)]
        with tf.device(self._devices[index % len(self._devices)]):
            return self._step.train_in_place(
                copy, batch, self._reduction.replica(index), step,
                lambda tensors, perform: exchange((tensors, perform)),
            )  # fmt: skip

    def _exchange(self, counts: list[Tensor], totals: list[Tensor], items: list[Exchange]) -> None:
        """Average over all replicas, weighted by examples, and perform the update on each copy."""
        shares = [count / total for count, total in zip(counts, totals, strict=True)]
        rows = self._collect_rows([item[0] for item in items], shares)
        tensors = [[t for t in item[0] if not _is_sparse(t)] for item in items]
        floats = [t for t in tensors[0] if t.dtype.is_floating]
        wide = tf.float64 if any(t.dtype == tf.float64 for t in floats) else tf.float32
        vectors = [
            tf.concat(
                [
                    tf.zeros([0], wide),
                    *(_weigh(tf.cast(t, wide), share) for t in local if t.dtype.is_floating),
                ],
                0,
            )
            for local, share in zip(tensors, shares, strict=True)
        ]
        sizes = [t.shape.num_elements() for t in floats]
        summed = self._reduction.sum(vectors) if floats else vectors
        for copy, vector, sparse, item in zip(self._copies, summed, rows, items, strict=False):
            parts = iter(tf.split(vector, sizes) if sizes else [])
            averages = [
                sparse.pop(0)
                if _is_sparse(t)
                else tf.cast(tf.reshape(next(parts), t.shape), t.dtype)
                if t.dtype.is_floating
                else t
                for t in item[0]
            ]
            item[1](copy, averages)

    def _collect_rows(
        self, tensors: Sequence[Sequence[Tensor]], shares: Sequence[Tensor]
    ) -> list[list[Tensor]]:
        """Return the sparse gradients with the lookups of all replicas, for each local replica."""
        sparse = [[t for t in local if _is_sparse(t)] for local in tensors]
        weighed = [
            [tf.IndexedSlices(tf.reshape(_weigh(t.values, share), tf.shape(t.values)), t.indices)
             for t in local]
            for local, share in zip(sparse, shares, strict=True)
        ]  # fmt: skip
        buffers = [
            Buffer(tuple(t.shape), t.dtype.name, looked_up=True, group=number, store=0)
            for number, t in enumerate(sparse[0])
        ]
        return self._reduction.sum_rows(weighed, buffers)


def _is_sparse(tensor: Tensor) -> bool:
    return isinstance(tensor, tf.IndexedSlices)


def _weigh(tensor: Tensor, share: Tensor) -> Tensor:
    """Multiply by a share; nothing of a replica without examples counts, not even NaN."""
    flat = tf.reshape(tensor, [-1])
    return tf.where(share > 0, flat * tf.cast(share, flat.dtype), tf.zeros_like(flat))


def _count_examples(optional: Tensor) -> Tensor:
    return tf.cond(
        optional.has_value(),
        lambda: tf.cast(batch_length(optional.get_value()), tf.float32),
        lambda: tf.constant(0.0),
    )


def _set_count(result: StepResult, count: Tensor) -> StepResult:
    """Return a result whose report has the true number of examples."""
    return result._replace(report=tf.concat([[count], result.report[1:]], 0))


def _mask(result: StepResult, count: Tensor) -> StepResult:
    """Return zeros if there are no examples."""
    state = [tf.where(count > 0, v, tf.zeros_like(v)) if v.dtype.is_floating else v
             for v in result.state]  # fmt: skip
    report = tf.where(count > 0, result.report, tf.zeros_like(result.report))
    return StepResult([], state, report, [])


def _make_dummy(element_spec: ElementSpec) -> Batch:
    """Return a batch of one example of zeros."""

    def make(spec: tf.TypeSpec) -> Tensor:
        if not isinstance(spec, tf.TensorSpec):
            raise ConfigurationError(
                f"the batches have a {type(spec).__name__}, but train_step updates the weights "
                "several times, for which all replicas need dense tensors: pad the data, or train "
                "in one process on one device"
            )
        return tf.zeros([size or 1 for size in spec.shape], spec.dtype)

    return tf.nest.map_structure(make, element_spec)
