"""tf.contrib.layers: initial values of weights."""

from typing import Any

import tensorflow.compat.v1 as tf


def xavier_initializer(
    uniform: bool = True, seed: int | None = None, dtype: Any = tf.float32
) -> Any:
    """Return Glorot's initializer.

    Args:
        uniform: Whether its distribution is uniform, and not normal.
        seed: The seed.
        dtype: The type of the values.

    Returns:
        The initializer.
    """
    kind = tf.glorot_uniform_initializer if uniform else tf.glorot_normal_initializer
    return kind(seed=seed, dtype=dtype)


xavier_initializer_conv2d = xavier_initializer


def variance_scaling_initializer(
    factor: float = 2.0,
    mode: str = "FAN_IN",
    uniform: bool = False,
    seed: int | None = None,
    dtype: Any = tf.float32,
) -> Any:
    """Return an initializer whose variance is factor / n.

    Args:
        factor: The factor.
        mode: What n is: FAN_IN, FAN_OUT or FAN_AVG.
        uniform: Whether its distribution is uniform, and not normal.
        seed: The seed.
        dtype: The type of the values.

    Returns:
        The initializer.
    """
    distribution = "uniform" if uniform else "truncated_normal"
    return tf.variance_scaling_initializer(factor, mode.lower(), distribution, seed, dtype)
