"""Pictures made up on the spot, for demonstrations and tests: easy, but not trivial, to learn.

Each class has stripes of its own direction and colour, at a random place and strength, under noise.
They look like CIFAR-10's: three colours, one after the other, and labels from 0.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from phalanx.data.datasets.pictures import Array, Pictures, write_splits
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
    """Write `count` pictures for training, and a fifth of it or `evaluation` others, to `out`."""
    if count < 1 or classes < 2 or size < 4:
        raise DataError(f"{count} pictures of {size} x {size} in {classes} classes cannot be made: "
                        "take 1 or more, of 4 x 4 or larger, in 2 classes or more")  # fmt: skip
    others = max(count // 5, 1) if evaluation is None else evaluation
    splits = {
        "train": draw(count, classes, size, seed),
        "eval": draw(others, classes, size, seed + 1_000_003),
    }
    directions = [f"{180 * number / classes:.3g}°" for number in range(classes)]
    return write_splits(splits, directions, out, shards)


def draw(count: int, classes: int, size: int, seed: int) -> Pictures:
    """`count` pictures, their classes as even as can be."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % classes)
    images = np.empty((count, 3 * size * size), np.uint8)
    for begin in range(0, count, _CHUNK):
        part = labels[begin : begin + _CHUNK]
        images[begin : begin + _CHUNK] = _draw(part, classes, size, random)
    return Pictures(images, labels)


def _draw(labels: Array, classes: int, size: int, random: np.random.Generator) -> Array:
    angles = np.pi * labels / classes
    rows, columns = np.mgrid[0:size, 0:size] / size
    across = np.cos(angles)[:, None, None] * columns + np.sin(angles)[:, None, None] * rows
    phases = random.random((len(labels), 1, 1))
    stripes = np.sin(2 * np.pi * (4 * across + phases))
    colours = 0.5 + 0.5 * np.cos(2 * np.pi * (labels[:, None] / classes + np.arange(3) / 3))
    strengths = random.uniform(40, 90, (len(labels), 1, 1, 1))
    pictures = 128 + strengths * colours[:, :, None, None] * stripes[:, None]
    pictures += random.normal(0, 30, pictures.shape)
    flat: Array = np.clip(pictures, 0, 255).astype(np.uint8).reshape(len(labels), -1)
    return flat
