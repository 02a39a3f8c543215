"""Synthetic images for demonstrations and tests, which are easy but not trivial to learn.

The images of a class have stripes of the same direction and color, with random phase, contrast and
noise. Their format is that of CIFAR-10: three color channels, one after the other, and labels from
0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from phalanx.data.datasets.labelled_images import LabelledImages, write_splits
from phalanx.data.types import Array
from phalanx.errors import DataError

_CHUNK = 4096


def make_synthetic(
    out: str | Path,
    *,
    count: int = 10_000,
    evaluation: int | None = None,
    classes: int = 10,
    size: int = 32,
    seed: int = 0,
    shards: int | None = None,
) -> dict[str, int]:
    """Write `count` training images and `evaluation` others, by default a fifth, to `out`."""
    if count < 1 or classes < 2 or size < 4:
        raise DataError(f"{count} images of {size} x {size} in {classes} classes cannot be made: "
                        "take 1 or more, of 4 x 4 or larger, in 2 classes or more")  # fmt: skip
    eval_count = max(count // 5, 1) if evaluation is None else evaluation
    train = draw(count, classes, size, seed)
    evaluation_images = draw(eval_count, classes, size, seed + 1_000_003)
    directions = [f"{180 * number / classes:.3g}°" for number in range(classes)]
    return write_splits(train, evaluation_images, directions, out, shards=shards)


def draw(count: int, classes: int, size: int, seed: int) -> LabelledImages:
    """`count` random images, evenly distributed over the classes."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % classes)
    images = np.empty((count, 3 * size * size), np.uint8)
    for begin in range(0, count, _CHUNK):
        part = labels[begin : begin + _CHUNK]
        images[begin : begin + _CHUNK] = _draw(part, classes, size, random)
    return LabelledImages(images, labels)


def _draw(labels: Array, classes: int, size: int, random: np.random.Generator) -> Array:
    angles = np.pi * labels / classes
    rows, columns = np.mgrid[0:size, 0:size] / size
    across = np.cos(angles)[:, None, None] * columns + np.sin(angles)[:, None, None] * rows
    phases = random.random((len(labels), 1, 1))
    stripes = np.sin(2 * np.pi * (4 * across + phases))
    colors = 0.5 + 0.5 * np.cos(2 * np.pi * (labels[:, None] / classes + np.arange(3) / 3))
    contrasts = random.uniform(40, 90, (len(labels), 1, 1, 1))
    images = 128 + contrasts * colors[:, :, None, None] * stripes[:, None]
    images += random.normal(0, 30, images.shape)
    flat: Array = np.clip(images, 0, 255).astype(np.uint8).reshape(len(labels), -1)
    return flat
