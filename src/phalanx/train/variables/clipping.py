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

    def scale(self, factor: Tensor) -> Clipping:
        """Return the limits for gradients that are multiplied by a factor."""
        limits = (self.value, self.norm, self.global_norm)
        return Clipping(*(None if limit is None else limit * factor for limit in limits))

    @unconverted
    def apply(self, gradients: Sequence[Tensor], layout: FlatLayout) -> list[Tensor]:
        """Clip the gradients of buffers as if each variable had a gradient of its own.

        Afterwards the gradients of sparse tables hold each row once, with or without limits. As in
        Keras, the limits of a weight that is looked up are those of its lookups.
        """
        is_looked_up = [buffer.looked_up for buffer in layout.buffers]
        gradients = [
            gradient if looked_up else merge_rows(gradient)
            for gradient, looked_up in zip(gradients, is_looked_up, strict=True)
        ]
        if self.value is not None:
            gradients = [tf.clip_by_value(g, -self.value, self.value) for g in gradients]
        if self.norm is not None:
            gradients = _clip_each(gradients, layout, self.norm)
        if self.global_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.global_norm)
            # Keras sums the lookups when it multiplies them.
            gradients = [
                tf.convert_to_tensor(gradient) if looked_up else gradient
                for gradient, looked_up in zip(gradients, is_looked_up, strict=True)
            ]
        return list(gradients)


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
