"""Many tensors as one, so that one message moves them from a task to another."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.types import Tensor


@unconverted
def pack_indices(parts: Sequence[Tensor]) -> Tensor:
    """Return vectors of indices as one, which begins with their lengths."""
    lengths = tf.stack([tf.size(part, tf.int64) for part in parts])
    return tf.concat([lengths, *(tf.cast(part, tf.int64) for part in parts)], 0)


@unconverted
def unpack_indices(packed: Tensor, count: int) -> list[Tensor]:
    """Return the vectors that `pack_indices` has packed, on the current device."""
    return list(tf.split(packed[count:], packed[:count], num=count))


@unconverted
def pack_rows(parts: Sequence[Tensor]) -> Tensor:
    """Return matrices of the same type, of any width, as one vector."""
    return tf.concat([tf.reshape(part, [-1]) for part in parts], 0)


@unconverted
def unpack_rows(
    packed: Tensor, lengths: Sequence[Tensor], shapes: Sequence[tuple[int, ...]]
) -> list[Tensor]:
    """Return the rows of matrices, from their number in each and the shape of one."""
    sizes = [length * math.prod(shape) for length, shape in zip(lengths, shapes, strict=True)]
    parts = tf.split(packed, tf.stack(sizes), num=len(sizes))
    return [tf.reshape(part, [-1, *shape]) for part, shape in zip(parts, shapes, strict=True)]


@unconverted
def send_slices(gradients: Sequence[Tensor], device: str) -> list[Tensor]:
    """Move sparse gradients to a device: their indices in one tensor, values in one of each type.

    Args:
        gradients: Each a `tf.IndexedSlices`.
        device: Where they are used.
    """
    if len(gradients) < 2:
        with tf.device(device):
            return [
                tf.nest.map_structure(tf.identity, g, expand_composites=True) for g in gradients
            ]
    packed = pack_indices([gradient.indices for gradient in gradients])
    by_type: dict[tf.DType, list[int]] = {}
    for position, gradient in enumerate(gradients):
        by_type.setdefault(gradient.values.dtype, []).append(position)
    vectors = [pack_rows([gradients[i].values for i in of_type]) for of_type in by_type.values()]
    with tf.device(device):
        indices = unpack_indices(tf.identity(packed), len(gradients))
        values: dict[int, Tensor] = {}
        for vector, of_type in zip(vectors, by_type.values(), strict=True):
            lengths = [tf.size(indices[i]) for i in of_type]
            shapes = [tuple(gradients[i].values.shape[1:]) for i in of_type]
            values |= zip(of_type, unpack_rows(tf.identity(vector), lengths, shapes), strict=True)
        return [
            tf.IndexedSlices(values[i], indices[i], _copy_shape(gradient.dense_shape))
            for i, gradient in enumerate(gradients)
        ]


def _copy_shape(shape: Tensor) -> Tensor:
    """Return a shape on the current device, as a constant if it is one."""
    value = tf.get_static_value(shape)
    return tf.identity(shape) if value is None else tf.constant(value)
