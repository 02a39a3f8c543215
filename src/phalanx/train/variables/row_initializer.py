"""Initial rows of a table, made in blocks: each block depends on a seed and its number alone."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from phalanx.train.types import Tensor

Initializer: TypeAlias = Any
"""An initializer of Keras, or another function from a shape to a tensor."""

_BLOCK_BYTES = 16 * 2**20

_CONSTANT = (keras.initializers.Zeros, keras.initializers.Ones, keras.initializers.Constant)
_RANDOM = (
    keras.initializers.RandomUniform,
    keras.initializers.RandomNormal,
    keras.initializers.TruncatedNormal,
)
# The standard deviation of a normal distribution that is truncated at two of its own.
_TRUNCATED_DEVIATION = 0.87962566103423978


class _FixedSeed(keras.random.SeedGenerator):  # type: ignore[misc]
    """Gives an initializer of Keras the same two numbers whenever it asks for a seed."""

    def __init__(self, seed: Tensor) -> None:
        # Without the constructor of Keras, which creates a variable.
        self._seed = seed

    def next(self, ordered: bool = True) -> Tensor:
        return self._seed


@dataclass(frozen=True)
class RowInitializer:
    """Makes the rows of a table, a block at a time, with an initializer of Keras.

    The values do not depend on how the rows are distributed. A table that is not larger than one
    block has the values that Keras would give it.
    """

    shape: tuple[int, ...]
    dtype: str
    initializer: Initializer
    seed: tuple[int, int] = (0, 0)
    is_random: bool = False

    @classmethod
    def make(
        cls, initializer: Initializer, shape: tuple[int, ...], dtype: str
    ) -> RowInitializer | None:
        """Return None for an initializer that needs the whole table at once."""
        if type(initializer) in _CONSTANT:
            if np.ndim(getattr(initializer, "value", 0)) > 0:
                return None
            return cls(shape, dtype, initializer)
        if isinstance(initializer, keras.initializers.VarianceScaling):
            initializer = _fix_scale(initializer, shape)
        if type(initializer) not in _RANDOM:
            return None
        return cls(shape, dtype, initializer, _draw_seed(initializer), is_random=True)

    @property
    def block_rows(self) -> int:
        """How many rows a block has: a power of two, about 16 MB."""
        size = math.prod(self.shape[1:]) * tf.as_dtype(self.dtype).size
        return int(2 ** max(0, math.floor(math.log2(max(1, _BLOCK_BYTES / max(1, size))))))

    def make_rows(self, begin: int, end: int) -> Tensor:
        """Make rows of one block, on the current device; `end` is not included."""
        block = begin // self.block_rows
        first = block * self.block_rows
        length = min(self.block_rows, self.shape[0] - first)
        initializer = self.initializer
        if self.is_random:
            initializer = copy.copy(initializer)
            low, high = self.seed
            seed = tf.constant(np.array([low, (high + block) % 2**32], np.uint32))
            initializer.seed = _FixedSeed(seed)
        rows = initializer((length, *self.shape[1:]), dtype=self.dtype)
        return rows[begin - first : end - first]


def _draw_seed(initializer: Any) -> tuple[int, int]:
    """Return the two numbers that the initializer would use in Keras."""
    if isinstance(initializer.seed, int):
        return initializer.seed % 2**32, 0
    low, high = np.asarray(initializer.seed.next()).astype(np.int64)
    return int(low), int(high)


def _fix_scale(initializer: Any, shape: tuple[int, ...]) -> Initializer:
    """Return the distribution of a variance scaling initializer for the shape of the table."""
    # A kernel of a convolution has its inputs and outputs in the last two dimensions.
    field, inputs, outputs = math.prod(shape[:-2]), (shape[-2:])[0], shape[-1]
    fans = {"fan_in": field * inputs, "fan_out": field * outputs}
    fan = fans.get(initializer.mode, sum(fans.values()) / 2)
    scale, seed = initializer.scale / max(1.0, fan), initializer.seed
    if initializer.distribution == "uniform":
        limit = math.sqrt(3.0 * scale)
        return keras.initializers.RandomUniform(-limit, limit, seed)
    deviation = math.sqrt(scale)
    if initializer.distribution == "truncated_normal":
        return keras.initializers.TruncatedNormal(0.0, deviation / _TRUNCATED_DEVIATION, seed)
    return keras.initializers.RandomNormal(0.0, deviation, seed)
