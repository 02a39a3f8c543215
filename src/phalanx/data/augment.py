"""Augmentation of batches of images: (batch, height, width, channels).

    def prepare(batch, seed):
        images = from_depth_major(batch["image"])
        images = crop_and_flip(images, padding=4, seed=seed)
        return standardize(images), batch["label"]

    pipeline.map(prepare, seeded=True)

Each image of a batch is changed differently; the seed determines how.
"""

from __future__ import annotations

import tensorflow as tf

from phalanx.data.types import Tensor


def from_depth_major(images: Tensor, height: int = 32, width: int = 32, depth: int = 3) -> Tensor:
    """Convert rows of bytes, one color channel after the other as in CIFAR-10, to images."""
    # Not by tf.transpose: oneDNN logs on many CPUs that it cannot transpose bytes.
    channels = tf.unstack(tf.reshape(images, (-1, depth, height * width)), axis=1)
    return tf.reshape(tf.stack(channels, axis=-1), (-1, height, width, depth))


def crop_and_flip(images: Tensor, padding: int, seed: Tensor, *, flip: bool = True) -> Tensor:
    """Pad each image with black, crop it to its old size at random, and flip half of them.

    The result is float32.
    """
    shape = tf.shape(images)
    count, height, width = shape[0], shape[1], shape[2]
    # One pixel more than needed, so that rounding stays inside the image.
    border = [padding + 1, padding + 1]
    padded = tf.pad(images, [[0, 0], border, border, [0, 0]])
    corners = tf.random.stateless_uniform((2, count), seed, 1, 2 * padding + 2, tf.int32)
    tops, lefts = corners[0], corners[1]
    rights = lefts + width - 1
    if flip:
        # A box whose right edge is left of its left edge is flipped.
        flipped = tf.random.stateless_uniform((count,), seed + 1) < 0.5
        lefts, rights = tf.where(flipped, rights, lefts), tf.where(flipped, lefts, rights)
    boxes = tf.cast(tf.stack([tops, lefts, tops + height - 1, rights], axis=1), tf.float32)
    last = tf.cast(tf.stack([height, width, height, width]) + 2 * padding + 1, tf.float32)
    cropped = tf.image.crop_and_resize(
        padded, boxes / last, tf.range(count), (height, width), method="nearest"
    )
    return tf.ensure_shape(cropped, images.shape)


def standardize(images: Tensor) -> Tensor:
    """Scale each image to mean 0 and standard deviation 1."""
    return tf.image.per_image_standardization(images)
