"""tf.contrib.slim.losses: `tf.losses`, with the predictions before the labels."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import tensorflow.compat.v1 as tf

add_loss = tf.losses.add_loss
get_losses = tf.losses.get_losses
get_regularization_losses = tf.losses.get_regularization_losses
get_total_loss = tf.losses.get_total_loss


def _swap(loss: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(loss)
    def call(predictions: Any, labels: Any, weights: Any = 1.0, **more: Any) -> Any:
        return loss(labels, predictions, weights=weights, **more)

    return call


absolute_difference = _swap(tf.losses.absolute_difference)
log_loss = _swap(tf.losses.log_loss)
mean_squared_error = _swap(tf.losses.mean_squared_error)
sigmoid_cross_entropy = _swap(tf.losses.sigmoid_cross_entropy)
softmax_cross_entropy = _swap(tf.losses.softmax_cross_entropy)
sparse_softmax_cross_entropy = _swap(tf.losses.sparse_softmax_cross_entropy)
