"""Gradients that an optimizer accumulates over several steps, where their mean is clipped."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from phalanx.train.types import Tensor


@dataclass(frozen=True)
class AccumulatedGradient:
    """The gradient of a buffer in one step, and the sum of those since the last update.

    Attributes:
        gradient: The gradient of this step.
        earlier: The sum of those before it; None if the optimizer of the buffer accumulates none.
        steps: After how many steps an update comes.
        is_update: Whether it comes after this one.
        device: The device of the buffer.
    """

    gradient: Tensor
    earlier: Tensor | None
    steps: int
    is_update: Tensor
    device: str

    @property
    def mean(self) -> Tensor:
        """The mean gradient, if this step is that of an update."""
        if self.earlier is None:
            return self.gradient
        with tf.device(self.device):
            mean = (_values(self.gradient) + self.earlier) / self.steps
            return _with_values(self.gradient, mean)

    def replace_mean(self, mean: Tensor) -> Tensor:
        """Return what the optimizer must get, so that an update is by this mean."""
        if self.earlier is None:
            return mean
        with tf.device(self.device):
            given = _values(mean) * self.steps - self.earlier
            return _with_values(
                self.gradient, tf.where(self.is_update, given, _values(self.gradient))
            )


def _values(gradient: Tensor) -> Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _with_values(gradient: Tensor, values: Tensor) -> Tensor:
    if not isinstance(gradient, tf.IndexedSlices):
        return values
    return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
