"""tf.contrib.seq2seq: the loss of sequences. Decoders and attention are missing."""

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf


def sequence_loss(
    logits: Any,
    targets: Any,
    weights: Any,
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """Return the weighted cross-entropy of sequences.

    Args:
        logits: [batch, time, classes].
        targets: The classes, [batch, time].
        weights: The weight of each step, [batch, time]; 0 for padding.
        average_across_timesteps: Whether to take the mean over the time.
        average_across_batch: Whether to take the mean over the batch.
        softmax_loss_function: Returns the losses for `labels` and `logits`.
        name: The name of the operation.

    Returns:
        The loss: without means, [batch, time].
    """
    if logits.shape.rank != 3 or targets.shape.rank != 2 or weights.shape.rank != 2:
        raise ValueError(
            f"sequence_loss: logits are {logits.shape}, targets {targets.shape} and weights "
            f"{weights.shape}: they must be [batch, time, classes] and twice [batch, time]"
        )
    loss_fn = softmax_loss_function or tf.nn.sparse_softmax_cross_entropy_with_logits
    with tf.name_scope(name, "sequence_loss", [logits, targets, weights]):
        classes = tf.shape(logits)[2]
        flat = loss_fn(labels=tf.reshape(targets, [-1]), logits=tf.reshape(logits, [-1, classes]))
        losses = tf.reshape(flat, tf.shape(logits)[:2]) * weights
        axes = [
            axis
            for axis, averages in enumerate((average_across_batch, average_across_timesteps))
            if averages
        ]
        if not axes:
            losses.set_shape(targets.shape)
            return losses
        # A weight of zero everywhere gives a loss of zero.
        return tf.reduce_sum(losses, axes) / (tf.reduce_sum(weights, axes) + 1e-12)
