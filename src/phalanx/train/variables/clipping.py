"""Gradient clipping across buffers and stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.types import Tensor
from phalanx.train.variables.flat_layout import FlatLayout
from phalanx.train.variables.sparse_tables import merge_rows


@dataclass(frozen=True)
class Clipping:
    """The limits on gradients: of each value, of each variable's norm, and of the norm of all."""

    value: float | Tensor | None = None
    norm: float | Tensor | None = None
    global_norm: float | Tensor | None = None

    @property
    def has_limits(self) -> bool:
        return any(limit is not None for limit in (self.value, self.norm, self.global_norm))

    def scale(self, factor: Tensor) -> Clipping:
        """Return the limits for gradients that are multiplied by a factor."""
        limits = (self.value, self.norm, self.global_norm)
        return Clipping(*(None if limit is None else limit * factor for limit in limits))

    @unconverted
    def apply(
        self,
        gradients: Sequence[Tensor],
        layout: FlatLayout,
        devices: Sequence[str | None] | None = None,
    ) -> list[Tensor]:
        """Clip the gradients of buffers as if each variable had a gradient of its own.

        Afterwards the gradients of sparse tables hold each row once, with or without limits. As in
        Keras, the limits of a weight that is looked up are those of its lookups.

        Args:
            gradients: A gradient of each buffer.
            layout: The layout of the buffers.
            devices: Where each gradient is, and stays; by default, the current device.
        """
        places = list(devices or [None] * len(gradients))
        prepared = []
        for gradient, buffer, device in zip(gradients, layout.buffers, places, strict=True):
            with tf.device(device):
                merged = gradient if buffer.looked_up else merge_rows(gradient)
                if self.value is not None:
                    merged = tf.clip_by_value(merged, -self.value, self.value)
                prepared.append(merged)
        if self.norm is not None:
            prepared = _clip_each(prepared, layout, self.norm)
        if self.global_norm is not None:
            prepared = _clip_all(prepared, places, self.global_norm)
            # Keras sums the lookups when it multiplies them.
            for index, buffer in enumerate(layout.buffers):
                if buffer.looked_up:
                    with tf.device(places[index]):
                        prepared[index] = tf.convert_to_tensor(prepared[index])
        return prepared


def _clip_all(
    gradients: Sequence[Tensor], devices: Sequence[str | None], norm: float | Tensor
) -> list[Tensor]:
    """Clip by the norm of all gradients, of which only the squares leave their devices."""
    is_wide = any(_values(gradient).dtype == tf.float64 for gradient in gradients)
    squares = []
    for gradient, device in zip(gradients, devices, strict=True):
        with tf.device(device):
            square = 2 * tf.nn.l2_loss(_values(gradient))
            squares.append(tf.cast(square, tf.float64 if is_wide else tf.float32))
    factor = _find_factor(tf.sqrt(tf.add_n(squares)), norm)
    clipped = []
    for gradient, device in zip(gradients, devices, strict=True):
        with tf.device(device):
            values = _values(gradient) * tf.cast(factor, _values(gradient).dtype)
            is_sparse = isinstance(gradient, tf.IndexedSlices)
            clipped.append(
                tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
                if is_sparse
                else values
            )
    return clipped


def _values(gradient: Tensor) -> Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _find_factor(found: Tensor, limit: float | Tensor) -> Tensor:
    """Return what gradients of a norm are multiplied by; NaN where that is not finite."""
    limit = tf.cast(limit, found.dtype)
    factor = limit * tf.minimum(1 / found, 1 / limit)
    return tf.where(tf.math.is_finite(found), factor, tf.cast(float("nan"), found.dtype))


def _clip_each(
    gradients: Sequence[Tensor], layout: FlatLayout, norm: float | Tensor
) -> list[Tensor]:
    """Clip by the norm of each variable's gradient, whichever buffers hold it."""
    is_sparse = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
    dense = [None if sparse else g for g, sparse in zip(gradients, is_sparse, strict=True)]
    values = layout.unflatten(dense)
    clipped = layout.flatten([v if v is None else tf.clip_by_norm(v, norm) for v in values])
    sparse_groups = {layout.buffers[i].group for i, sparse in enumerate(is_sparse) if sparse}
    for group in sparse_groups:
        indices = [i for i, buffer in enumerate(layout.buffers) if buffer.group == group]
        parts, _ = tf.clip_by_global_norm([gradients[i] for i in indices], norm)
        for index, part in zip(indices, parts, strict=True):
            clipped[index] = part
    return clipped
