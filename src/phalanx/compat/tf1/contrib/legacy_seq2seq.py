"""tf.contrib.legacy_seq2seq: the losses of sequences. Encoders and decoders are missing."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf


def sequence_loss_by_example(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """Return the weighted cross-entropy of each sequence of a batch.

    Args:
        logits: For each step, [batch, classes].
        targets: For each step, the classes [batch].
        weights: For each step, the weights [batch].
        average_across_timesteps: Whether to take the mean over the time, not the sum.
        softmax_loss_function: Returns the losses for `labels` and `logits`.
        name: The name of the operation.

    Returns:
        The losses, [batch].
    """
    if not len(logits) == len(targets) == len(weights):
        raise ValueError(
            f"there are {len(logits)} logits, {len(targets)} targets and {len(weights)} weights: "
            "each step needs one of each"
        )
    loss_fn = softmax_loss_function or tf.nn.sparse_softmax_cross_entropy_with_logits
    with tf.name_scope(name, "sequence_loss_by_example", [*logits, *targets, *weights]):
        total = tf.add_n(
            [
                loss_fn(labels=tf.reshape(target, [-1]), logits=logit) * weight
                for logit, target, weight in zip(logits, targets, weights, strict=True)
            ]
        )
        return total / (tf.add_n(list(weights)) + 1e-12) if average_across_timesteps else total


def sequence_loss(
    logits: Sequence[Any],
    targets: Sequence[Any],
    weights: Sequence[Any],
    average_across_timesteps: bool = True,
    average_across_batch: bool = True,
    softmax_loss_function: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Any:
    """Return the sum of `sequence_loss_by_example`, or with `average_across_batch` its mean."""
    losses = sequence_loss_by_example(
        logits, targets, weights, average_across_timesteps, softmax_loss_function, name
    )
    return tf.reduce_mean(losses) if average_across_batch else tf.reduce_sum(losses)
