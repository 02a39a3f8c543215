"""Sums of what synchronous trainers contribute to an update, on the servers of the variables."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.step.accumulation import scale
from phalanx.train.step.step_function import StepResult
from phalanx.train.types import Tensor
from phalanx.train.variables import row_transfer
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.index_shard import Sightings
from phalanx.train.variables.row_accumulator import RowAccumulator, Rows
from phalanx.train.variables.sparse_tables import merge_rows
from phalanx.train.variables.state_queue import StateQueue

T = TypeVar("T")

# Whether a trainer took part, and its two times.
_COUNTS = 3


@dataclass(frozen=True)
class Sum:
    """One vector on a server: the gradients of some dense buffers, flat."""

    store: int
    buffers: list[int]
    sizes: list[int]
    """The sizes of the parts: of what comes first, of the buffers, of what comes last."""
    accumulator: Tensor


@dataclass(frozen=True)
class Taken:
    """The sums of one update, on the servers, and its report."""

    sums: list[Tensor]
    rows: dict[int, Rows]
    state: list[Tensor]
    """The state that is not averaged."""
    report: Tensor
    counts: Tensor
    """Which trainers took part; then how long each has waited for its batch, and computed."""


class GradientSums:
    """Sums the contributions of trainers, and applies the sums where they are.

    Gradients of a server are in few vectors, none of which has more bytes than a message may have.
    Each begins with the number of its examples: with backups, one server may have received a
    gradient that another has not. The very first begins with the whole report, the trainers that
    took part, and how long each has waited for its batch and computed; it ends with the state that
    is averaged.
    """

    def __init__(self, variables: DeviceVariables, trainers: int, report_size: int) -> None:
        self._variables = variables
        self._trainers, self._report_size = trainers, report_size
        self._devices = [store.device for store in variables.stores]
        self._rows = RowAccumulator(variables, trainers)
        state = variables.select_changing(variables.state_layout.buffers)
        self._is_averaged = [tf.as_dtype(buffer.dtype).is_floating for buffer in state]
        self._averages, others = self._split_state(state)
        self._state_queue = StateQueue(others, self._devices[0])
        self._sums = [self._make_sum(number, *part) for number, part in enumerate(self._split())]

    def begin(self, step: int) -> None:
        """Drop gradients of updates before this one."""
        for each in self._sums:
            tf.raw_ops.ResourceAccumulatorSetGlobalStep(
                handle=each.accumulator, new_global_step=tf.constant(step, tf.int64)
            )

    @unconverted
    def add(
        self, contribution: StepResult, trainer: Tensor, token: Tensor, times: Sequence[Tensor]
    ) -> None:
        """Add a contribution to an update; in the graph of a trainer, with its two times."""
        gradients, state, report, sightings = contribution
        averaged, others = self._split_state(state)
        one_hot = tf.one_hot(trainer, self._trainers)
        counts = [one_hot * tf.cast(each, tf.float32) for each in (report[0] > 0, *times)]
        vectors = []
        for number, each in enumerate(self._sums):
            dense = [gradients[index] for index in each.buffers]
            parts = [report[:1], *dense] if number else [report, *counts, *dense, *averaged]
            flat = [tf.reshape(tf.cast(part, tf.float32), [-1]) for part in parts]
            vectors.append(tf.concat(flat, 0))
        rows = self._serialize_rows(gradients, sightings)
        queued = self._state_queue.add(trainer, token, others)
        with tf.control_dependencies([*self._rows.add(trainer, token, rows), *queued]):
            for each, vector in zip(self._sums, vectors, strict=True):
                tf.raw_ops.ResourceAccumulatorApplyGradient(
                    handle=each.accumulator, local_step=token, gradient=vector
                )

    @unconverted
    def take(self, token: Tensor, required: int) -> Taken:
        """Wait for so many contributions to an update; later ones are dropped."""
        sums = []
        for each in self._sums:
            with tf.device(self._devices[each.store]):
                taken = tf.raw_ops.ResourceAccumulatorTakeGradient(
                    handle=each.accumulator, num_required=required, dtype=tf.float32
                )
                sums.append(tf.ensure_shape(taken, [sum(each.sizes)]))
        with tf.device(self._devices[0]):
            # Only these leave the parameter servers.
            head = sums[0][: self._sums[0].sizes[0]]
            report, counts = tf.split(head, [self._report_size, _COUNTS * self._trainers])
            counted = counts[: self._trainers]
        with tf.control_dependencies(sums):
            rows = self._rows.take(token, counted)
            state = self._state_queue.take(token, counted)
        return Taken(sums, rows, state, report, counts)

    @unconverted
    def apply(
        self, sums: list[Tensor], rows: dict[int, Rows], state: list[Tensor], count: Tensor
    ) -> Tensor:
        """Update the variables by sums that are on the parameter servers, and stay there."""
        variables, layout = self._variables, self._variables.layout
        gradients: list[Tensor] = [None] * len(layout.buffers)
        for index, (indices, values, *_) in rows.items():
            with tf.device(self._devices[layout.buffers[index].store]):
                shape = tf.constant(layout.buffers[index].shape, tf.int64)
                gradients[index] = scale(tf.IndexedSlices(values, indices, shape), 1 / count)
        averages: list[Tensor] = []
        for each, total in zip(self._sums, sums, strict=True):
            with tf.device(self._devices[each.store]):
                _, *parts = tf.split(total, each.sizes)
                for index, part in zip(each.buffers, parts, strict=False):
                    buffer = layout.buffers[index]
                    mean = tf.math.divide_no_nan(part, total[0])
                    gradients[index] = tf.cast(tf.reshape(mean, buffer.shape), buffer.dtype)
                averages += parts[len(each.buffers) :]
        # On the chief: the variables may be on another server, and servers send nothing to others.
        means = [
            tf.cast(tf.reshape(total / count, buffer.shape), buffer.dtype)
            for total, buffer in zip(averages, self._averages, strict=True)
        ]
        exact = iter(state)
        variables.write_changing_state(
            [means.pop(0) if is_mean else next(exact) for is_mean in self._is_averaged]
        )
        variables.apply(gradients, are_stored=True)
        seen = []
        for index in variables.growing_buffers():
            with tf.device(self._devices[layout.buffers[index].store]):
                seen.append(Sightings.merge(*rows[index][2:]))
        variables.grow(seen)
        return tf.constant(True)

    def _split(self) -> Iterator[tuple[int, list[int]]]:
        """Yield the server of each sum, and the dense buffers in it; every server has a sum."""
        layout = self._variables.layout
        for store in range(len(self._devices)):
            part: list[int] = []
            size = 0
            for index in layout.in_store(store):
                if self._variables.has_sparse_gradient(index):
                    continue
                added = layout.buffers[index].size * tf.float32.size
                if part and size + added > row_transfer.CHUNK_BYTES:
                    yield store, part
                    part, size = [], 0
                part.append(index)
                size += added
            yield store, part

    def _make_sum(self, number: int, store: int, buffers: list[int]) -> Sum:
        sizes = [self._variables.layout.buffers[index].size for index in buffers]
        if number:
            sizes = [1, *sizes]
        else:
            first = self._report_size + _COUNTS * self._trainers
            sizes = [first, *sizes, *(buffer.size for buffer in self._averages)]
        with tf.device(self._devices[store]):
            accumulator = tf.raw_ops.ResourceConditionalAccumulator(
                dtype=tf.float32, shape=[sum(sizes)], reduction_type="SUM",
                # Accumulators of one name are one, also that of an earlier run on this server.
                shared_name=f"phalanx-sum-{uuid.uuid4().hex}",
            )  # fmt: skip
        return Sum(store, buffers, sizes, accumulator)

    def _serialize_rows(
        self, gradients: Sequence[Tensor], sightings: Sequence[Sightings]
    ) -> list[Rows]:
        variables, indices = self._variables, self._variables.sparse_gradients()
        rows: list[Rows] = []
        for index in indices:
            is_table = variables.is_sparse(index)
            gradient = merge_rows(gradients[index]) if is_table else gradients[index]
            rows.append([gradient.indices, gradient.values])
        for index, seen in zip(variables.growing_buffers(), sightings, strict=True):
            rows[indices.index(index)] += [seen.ids, seen.counts]
        return rows

    def _split_state(self, state: Sequence[T]) -> tuple[list[T], list[T]]:
        """Return the buffers of changing state that are averaged, and the others."""
        pairs = list(zip(state, self._is_averaged, strict=True))
        return [value for value, is_mean in pairs if is_mean], [v for v, mean in pairs if not mean]
