"""tf.contrib.layers: the train_op of a loss."""

from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.estimator.canned.models import make_optimizer


def optimize_loss(
    loss: Any,
    global_step: Any,
    learning_rate: Any,
    optimizer: Any,
    gradient_noise_scale: float | None = None,
    gradient_multipliers: Any = None,
    clip_gradients: float | None = None,
    learning_rate_decay_fn: Callable[[Any, Any], Any] | None = None,
    update_ops: Any = None,
    variables: Any = None,
    name: str | None = None,
    summaries: Any = None,
    colocate_gradients_with_ops: bool = False,
    increment_global_step: bool = True,
) -> Any:
    """Return the train_op of a loss.

    Args:
        loss: The loss.
        global_step: The step; None for that of the graph.
        learning_rate: A number or a tensor.
        optimizer: A name such as "Adam", a class, a function of the learning rate, or an optimizer.
        gradient_noise_scale: Not supported.
        gradient_multipliers: Not supported.
        clip_gradients: The largest global norm of the gradients.
        learning_rate_decay_fn: Returns the learning rate for (learning_rate, global_step).
        update_ops: Operations to run before; by default the collection UPDATE_OPS.
        variables: The variables to train.
        name: The name of the operation.
        summaries: Not used: the loss and the learning rate are written.
        colocate_gradients_with_ops: As in `tf.gradients`.
        increment_global_step: Whether the operation counts a step.

    Returns:
        A tensor with the loss, whose computation runs the step.
    """
    if gradient_noise_scale is not None or gradient_multipliers is not None:
        raise ValueError("optimize_loss: gradient noise and multipliers are not supported")
    step = tf.train.get_global_step() if global_step is None else global_step
    rate = learning_rate
    if learning_rate_decay_fn is not None:
        rate = learning_rate_decay_fn(rate, step)
    if rate is not None:
        tf.summary.scalar("learning_rate", rate)
    is_class = isinstance(optimizer, type)
    if optimizer == "Momentum":
        chosen = tf.train.MomentumOptimizer(rate, momentum=0.9)
    elif isinstance(optimizer, str) or not (is_class or callable(optimizer)):
        chosen = make_optimizer(optimizer, rate)
    else:
        chosen = optimizer(learning_rate=rate) if is_class else optimizer(rate)
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS) if update_ops is None else update_ops
    with tf.control_dependencies(list(updates)):
        loss = tf.identity(loss)
    pairs = chosen.compute_gradients(
        loss, variables, colocate_gradients_with_ops=colocate_gradients_with_ops
    )
    if clip_gradients is not None:
        kept = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in kept], clip_gradients)
        pairs = list(zip(clipped, [variable for _, variable in kept], strict=True))
    train = chosen.apply_gradients(pairs, step if increment_global_step else None, name=name)
    with tf.control_dependencies([train]):
        return tf.identity(loss)
