"""A batch in parts, one after the other: for batches whose activations do not fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from phalanx.train.step.step_function import StepFunction, batch_length
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.flat_layout import Tensor

Compute = Callable[..., tuple[list[Tensor], list[Tensor], Tensor]]


def cut_batches(step: StepFunction, parts: int) -> Compute:
    """A step's `train` that cuts its batch into parts; what it gives is that of the whole batch."""
    if parts == 1:
        return step.train

    def train(
        weights: DeviceVariables,
        pieces: Sequence[Tensor],
        state: Sequence[Tensor],
        batch: Any,
        replica: Any,
        at_step: Any,
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        length = batch_length(batch)
        found = []
        for part in range(parts):
            begin, end = length * part // parts, length * (part + 1) // parts
            some = tf.nest.map_structure(lambda value, b=begin, e=end: value[b:e], batch)
            found.append(
                tf.cond(
                    end > begin,
                    lambda some=some, part=part: _weigh(
                        step.train(weights, pieces, state, some, replica * parts + part, at_step),
                        weights,
                    ),
                    lambda: _nothing(step, weights),
                )
            )
        report = tf.add_n([one[2] for one in found])
        gradients = [_add(values) for values in zip(*(one[0] for one in found), strict=True)]
        states = zip(*(one[1] for one in found), strict=True)
        share = 1 / report[0]
        return (
            [scale_gradient(gradient, share) for gradient in gradients],
            [
                tf.add_n(values) * tf.cast(share, values[0].dtype)
                if values[0].dtype.is_floating
                else tf.reduce_max(tf.stack(values), 0)
                for values in states
            ],
            report,
        )

    return train


def scale_gradient(gradient: Any, factor: Tensor) -> Any:
    """A gradient, of rows or of the whole, times a number."""
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(factor, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(factor, gradient.dtype)


def _weigh(found: tuple[list[Tensor], list[Tensor], Tensor], weights: DeviceVariables) -> Any:
    gradients, state, report = found
    count, tables = report[0], weights.table_pieces()
    return (
        [
            scale_gradient(g if number in tables else tf.convert_to_tensor(g), count)
            for number, g in enumerate(gradients)
        ],
        [v * tf.cast(count, v.dtype) if v.dtype.is_floating else v for v in state],
        report,
    )


def _nothing(step: StepFunction, weights: DeviceVariables) -> Any:
    tables = weights.table_pieces()
    gradients: list[Any] = []
    for number, piece in enumerate(weights.packing.pieces):
        if number in tables:
            rows = tf.zeros([0, *piece.shape[1:]], piece.dtype)
            shape = tf.constant(piece.shape, tf.int64)
            gradients.append(tf.IndexedSlices(rows, tf.zeros([0], tf.int64), shape))
        else:
            gradients.append(tf.zeros(piece.shape, piece.dtype))
    state = [tf.zeros(variable.shape, variable.dtype) for variable in weights.host_variables.state]
    return gradients, state, tf.zeros([step.report_size])


def _add(values: Sequence[Any]) -> Any:
    if isinstance(values[0], tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([value.values for value in values], 0),
            tf.concat([value.indices for value in values], 0),
            values[0].dense_shape,
        )
    return tf.add_n(values)
