"""Updates of state that other trainers have changed since a step read it.

A step that reads the state `before` returns `after`. On asynchronous parameter servers the state is
`current` by then. Its update there is `after + slope * (current - before)`, where `slope` is the
derivative of `after` with respect to `before`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.step.accumulation import Compute
from phalanx.train.step.step_function import StepResult
from phalanx.train.types import Batch, GradientTape, Tensor
from phalanx.train.variables.device_variables import DeviceVariables

# Derivatives are compared with this tolerance, which is that of 16-bit floats.
_TOLERANCE = 1e-2


class StateUpdate(NamedTuple):
    """What a step does to one buffer of state."""

    before: Tensor
    after: Tensor
    slope: Tensor

    @unconverted
    def apply(self, current: Tensor) -> Tensor:
        """Return the state after this update: exactly `after` if nobody else has changed it."""
        if current.dtype.is_floating:
            return self.after + self.slope * (current - self.before)
        return current + (self.after - self.before) if current.dtype.is_integer else self.after


ComputeUpdates = Callable[..., tuple[StepResult, list[StateUpdate]]]
"""The signature of `StepFunction.train`, with updates of the state."""


def make_updates(compute: Compute) -> ComputeUpdates:
    """Return a `StepFunction.train` that also tells how its new state depends on the old state."""

    @unconverted
    def train(
        variables: DeviceVariables,
        buffers: Sequence[Tensor],
        state: Sequence[Tensor],
        batch: Batch,
        replica: Tensor | int,
        step_number: Tensor | int,
    ) -> tuple[StepResult, list[StateUpdate]]:
        before = variables.select_changing(state)
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch([value for value in before if value.dtype.is_floating])
            result = compute(variables, buffers, state, batch, replica, step_number)
        return result, [
            StateUpdate(old, new, _measure_slope(tape, old, new))
            for old, new in zip(before, result.state, strict=True)
        ]

    return train


def _measure_slope(tape: GradientTape, before: Tensor, after: Tensor) -> Tensor:
    """Return the derivative of each element with respect to itself, where that tells the update.

    It is the momentum of a moving average, 1 for a sum, and 0 for state that is overwritten. State
    counts as overwritten where its elements depend on each other, or the derivative is not between
    0 and 1: then updates that are added up might diverge.
    """
    if not before.dtype.is_floating:
        return tf.zeros([], before.dtype)
    ones = tf.ones_like(before)
    weights = 1 + tf.cast(tf.random.stateless_uniform(tf.shape(before), [0, 0]), before.dtype)
    try:
        slope, weighted = (
            tape.gradient(
                after, before, output_gradients=vector,
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            for vector in (ones, weights)
        )  # fmt: skip
    except LookupError:
        # An operation on the way has no gradient.
        return tf.zeros_like(before)
    is_elementwise = tf.abs(weighted - slope * weights) <= _TOLERANCE
    is_mean = tf.logical_and(slope >= 0, slope <= 1)
    return tf.where(tf.logical_and(is_elementwise, is_mean), slope, tf.zeros_like(slope))
