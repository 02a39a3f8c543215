"""Changes to whole batches of pictures, as training wants them: (batch, height, width, channels).

    def prepare(batch, seed):
        images = from_depth_major(batch["image"])
        images = crop_and_flip(images, padding=4, seed=seed)
        return standardize(images), batch["label"]

    pipeline.map(prepare, seeded=True)

Each picture of a batch is changed on its own, and the seed decides how.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def from_depth_major(images: Any, height: int = 32, width: int = 32, depth: int = 3) -> Any:
    """Rows of bytes, one colour after the other as CIFAR has them, to pictures."""
    # Not by a transposition: of bytes, oneDNN says on many CPUs that it cannot make it.
    colours = tf.unstack(tf.reshape(images, (-1, depth, height * width)), axis=1)
    return tf.reshape(tf.stack(colours, axis=-1), (-1, height, width, depth))


def crop_and_flip(images: Any, padding: int, seed: Any, *, flip: bool = True) -> Any:
    """Put a black frame around each picture, cut out a part of the old size, mirror every other.

    Where it is cut and whether it is mirrored is random. The result is float32.
    """
    shape = tf.shape(images)
    count, height, width = shape[0], shape[1], shape[2]
    # One pixel more than asked for, so that rounding never leads outside the picture.
    frame = [padding + 1, padding + 1]
    padded = tf.pad(images, [[0, 0], frame, frame, [0, 0]])
    corners = tf.random.stateless_uniform((2, count), seed, 1, 2 * padding + 2, tf.int32)
    tops, lefts = corners[0], corners[1]
    rights = lefts + width - 1
    if flip:
        # A box that ends left of where it begins is cut out mirrored.
        mirrored = tf.random.stateless_uniform((count,), seed + 1) < 0.5
        lefts, rights = tf.where(mirrored, rights, lefts), tf.where(mirrored, lefts, rights)
    boxes = tf.cast(tf.stack([tops, lefts, tops + height - 1, rights], axis=1), tf.float32)
    last = tf.cast(tf.stack([height, width, height, width]) + 2 * padding + 1, tf.float32)
    cut = tf.image.crop_and_resize(
        padded, boxes / last, tf.range(count), (height, width), method="nearest"
    )
    return tf.ensure_shape(cut, images.shape)


def standardize(images: Any) -> Any:
    """Give each picture mean 0 and deviation 1."""
    return tf.image.per_image_standardization(images)
