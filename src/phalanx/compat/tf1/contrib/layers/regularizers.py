"""tf.contrib.layers: losses of weights."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf


def l2_regularizer(scale: float, scope: str | None = None) -> Callable[[Any], Any] | None:
    """Return a function for the loss of weights: scale times half of their squares' sum.

    Args:
        scale: The factor; 0 means none.
        scope: Not used.

    Returns:
        The function.
    """
    return (lambda weights: scale * tf.nn.l2_loss(weights)) if scale else None


def l1_regularizer(scale: float, scope: str | None = None) -> Callable[[Any], Any] | None:
    """Return a function for the loss of weights: scale times the sum of their absolute values.

    Args:
        scale: The factor; 0 means none.
        scope: Not used.

    Returns:
        The function.
    """
    return (lambda weights: scale * tf.reduce_sum(tf.abs(weights))) if scale else None


def l1_l2_regularizer(
    scale_l1: float = 1.0, scale_l2: float = 1.0, scope: str | None = None
) -> Callable[[Any], Any] | None:
    """Return the sum of `l1_regularizer` and `l2_regularizer`.

    Args:
        scale_l1: The factor of the absolute values; 0 means none.
        scale_l2: The factor of the squares; 0 means none.
        scope: Not used.

    Returns:
        The function.
    """
    return sum_regularizer([l1_regularizer(scale_l1), l2_regularizer(scale_l2)])


def sum_regularizer(
    regularizer_list: Sequence[Callable[[Any], Any] | None], scope: str | None = None
) -> Callable[[Any], Any] | None:
    """Return the sum of several regularizers.

    Args:
        regularizer_list: The regularizers; None is left out.
        scope: Not used.

    Returns:
        The function.
    """
    kept = [each for each in regularizer_list if each is not None]
    return (lambda weights: tf.add_n([each(weights) for each in kept])) if kept else None


def apply_regularization(regularizer: Callable[[Any], Any], weights_list: Any = None) -> Any:
    """Return the sum of a regularizer over weights.

    Args:
        regularizer: Returns the loss of weights.
        weights_list: The weights; by default those of the collection WEIGHTS.

    Returns:
        The sum.
    """
    weights = weights_list or tf.get_collection(tf.GraphKeys.WEIGHTS)
    return tf.add_n([regularizer(each) for each in weights])
