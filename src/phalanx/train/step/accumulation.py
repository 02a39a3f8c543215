"""Gradient accumulation: batches are weighted by their examples, summed, and averaged.

A contribution is what one batch adds to an update. Multiplied by the number of its examples it can
be added to those of other batches, replicas and hosts, whatever their sizes.
"""

from collections.abc import Callable, Sequence
from functools import reduce

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.step.report_values import batch_length
from phalanx.train.step.step_function import StepFunction, StepResult
from phalanx.train.types import Batch, Tensor
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.index_shard import Sightings

Compute = Callable[..., StepResult]
"""The signature of `StepFunction.train`."""


@unconverted
def weight_by_examples(result: StepResult, variables: DeviceVariables) -> StepResult:
    """Multiply gradients and state by the number of examples of their batch."""
    count = result.report[0]
    gradients = [
        gradient if variables.has_sparse_gradient(index) else tf.convert_to_tensor(gradient)
        for index, gradient in enumerate(result.gradients)
    ]
    return StepResult(
        [scale(gradient, count) for gradient in gradients],
        [scale(value, count) if value.dtype.is_floating else value for value in result.state],
        result.report,
        result.sightings,
    )


@unconverted
def zero_contribution(
    variables: DeviceVariables, state: Sequence[Tensor], report_size: int
) -> StepResult:
    """Return the contribution of a batch without examples; integer state keeps its value."""
    zero_state = [tf.zeros_like(v) if v.dtype.is_floating else tf.identity(v) for v in state]
    gradients, report = variables.zero_gradients(), tf.zeros([report_size])
    return StepResult(gradients, zero_state, report, variables.no_sightings())


@unconverted
def has_examples(
    optional: Tensor, find_batch: Callable[[Batch], Batch] = lambda element: element
) -> Tensor:
    """Whether the element of a dataset exists and has any example in its batch."""
    return tf.cond(
        optional.has_value(),
        lambda: batch_length(find_batch(optional.get_value())) > 0,
        lambda: tf.constant(False),
    )


@unconverted
def add_contributions(first: StepResult, second: StepResult) -> StepResult:
    """Sum two contributions; of integer state, keep the later value that is of any examples."""
    has_examples = second.report[0] > 0
    return StepResult(
        [_add(a, b) for a, b in zip(first.gradients, second.gradients, strict=True)],
        [
            a + b if a.dtype.is_floating else tf.where(has_examples, b, a)
            for a, b in zip(first.state, second.state, strict=True)
        ],
        first.report + second.report,
        [Sightings.add(pair) for pair in zip(first.sightings, second.sightings, strict=True)],
    )


@unconverted
def average(total: StepResult) -> StepResult:
    """Divide a sum of contributions by the number of their examples."""
    share = 1 / total.report[0]
    return StepResult(
        [scale(gradient, share) for gradient in total.gradients],
        [scale(value, share) if value.dtype.is_floating else value for value in total.state],
        total.report,
        total.sightings,
    )


def accumulate_parts(step: StepFunction, parts: int) -> Compute:
    """Return a `step.train` that runs each batch in parts, one after the other, to save memory."""
    if parts == 1:
        return step.train

    def train(
        variables: DeviceVariables,
        buffers: Sequence[Tensor],
        state: Sequence[Tensor],
        batch: Batch,
        replica: Tensor | int,
        step_number: Tensor | int,
    ) -> StepResult:
        length = batch_length(batch)
        contributions = []
        for part in range(parts):
            begin, end = length * part // parts, length * (part + 1) // parts
            examples = tf.nest.map_structure(lambda value, b=begin, e=end: value[b:e], batch)
            seed = replica * parts + part
            contributions.append(
                tf.cond(
                    end > begin,
                    lambda examples=examples, seed=seed: weight_by_examples(
                        step.train(variables, buffers, state, examples, seed, step_number),
                        variables,
                    ),
                    lambda: zero_contribution(
                        variables, variables.select_changing(state), step.report_size
                    ),
                )
            )
        return average(reduce(add_contributions, contributions))

    return train


def scale(value: Tensor, factor: Tensor) -> Tensor:
    """Multiply a tensor, or a dense or sparse gradient, by a number."""
    if isinstance(value, tf.IndexedSlices):
        values = value.values * tf.cast(factor, value.values.dtype)
        return tf.IndexedSlices(values, value.indices, value.dense_shape)
    return value * tf.cast(factor, value.dtype)


def _add(first: Tensor, second: Tensor) -> Tensor:
    if isinstance(first, tf.IndexedSlices):
        return tf.IndexedSlices(
            tf.concat([first.values, second.values], 0),
            tf.concat([first.indices, second.indices], 0),
            first.dense_shape,
        )
    return first + second
