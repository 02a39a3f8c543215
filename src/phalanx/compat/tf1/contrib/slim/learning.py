"""tf.contrib.slim.learning: the train_op of a loss, and the loop that runs it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.session import STOP_GRACE_SECONDS
from phalanx.compat.tf1.train import MonitoredTrainingSession

LOG = logging.getLogger("tensorflow")

_WITHOUT_EFFECT = ("startup_delay_steps", "trace_every_n_steps", "ignore_live_threads")
Pairs = list[tuple[Any, Any]]


def clip_gradient_norms(gradients_to_variables: Pairs, max_norm: float) -> Pairs:
    """Return gradients whose norms are at most `max_norm`, each for itself."""
    return [
        (gradient if gradient is None else tf.clip_by_norm(gradient, max_norm), variable)
        for gradient, variable in gradients_to_variables
    ]


def multiply_gradients(grads_and_vars: Pairs, gradient_multipliers: Mapping[Any, Any]) -> Pairs:
    """Return gradients times the factors of some variables, which are given by name or itself."""
    factors = {getattr(key, "op", key): value for key, value in gradient_multipliers.items()}
    return [
        (gradient * factors.get(variable.op, factors.get(variable.op.name, 1.0)), variable)
        for gradient, variable in grads_and_vars
    ]


def add_gradients_summaries(grads_and_vars: Pairs) -> list[Any]:
    """Write a histogram of each gradient, and its norm."""
    written = []
    for gradient, variable in grads_and_vars:
        if gradient is not None:
            values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            written += [
                tf.summary.histogram(f"{variable.op.name}/gradient", values),
                tf.summary.scalar(f"{variable.op.name}/gradient_norm", tf.global_norm([values])),
            ]
    return written


def create_train_op(
    total_loss: Any,
    optimizer: Any,
    global_step: Any = "default",
    update_ops: Sequence[Any] | None = None,
    variables_to_train: Sequence[Any] | None = None,
    clip_gradient_norm: float = 0,
    summarize_gradients: bool = False,
    gradient_multipliers: Mapping[Any, Any] | None = None,
    colocate_gradients_with_ops: bool = False,
    check_numerics: bool = True,
    **more: Any,
) -> Any:
    """Return a tensor with the loss, whose computation runs a step.

    Args:
        total_loss: The loss.
        optimizer: The optimizer.
        global_step: The step to count; None counts none.
        update_ops: Operations to run before; by default the collection UPDATE_OPS.
        variables_to_train: By default all.
        clip_gradient_norm: The largest norm of each gradient; 0 for any.
        summarize_gradients: Whether to write the gradients.
        gradient_multipliers: Factors of gradients.
        colocate_gradients_with_ops: As in `tf.gradients`.
        check_numerics: Whether a loss that is not a number is an error.
        **more: `gate_gradients` and `aggregation_method` of the optimizer.

    Returns:
        The loss.
    """
    step = tf.train.get_or_create_global_step() if global_step == "default" else global_step
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS) if update_ops is None else update_ops
    with tf.control_dependencies(list(updates)):
        total_loss = tf.identity(total_loss)
    pairs = optimizer.compute_gradients(
        total_loss,
        variables_to_train,
        colocate_gradients_with_ops=colocate_gradients_with_ops,
        **more,
    )
    if gradient_multipliers:
        pairs = multiply_gradients(pairs, gradient_multipliers)
    if clip_gradient_norm > 0:
        pairs = clip_gradient_norms(pairs, clip_gradient_norm)
    if summarize_gradients:
        add_gradients_summaries(pairs)
    applied = optimizer.apply_gradients(pairs, global_step=step)
    if check_numerics:
        total_loss = tf.debugging.check_numerics(total_loss, "LossTensor is inf or nan")
    with tf.control_dependencies([applied]):
        train_op = tf.identity(total_loss, name="train_op")
    tf.add_to_collection(tf.GraphKeys.TRAIN_OP, train_op)
    return train_op


def train(
    train_op: Any,
    logdir: str | None,
    master: str = "",
    is_chief: bool = True,
    global_step: Any = None,
    number_of_steps: int | None = None,
    init_op: Any = None,
    init_fn: Callable[[Any], Any] | None = None,
    local_init_op: Any = None,
    saver: Any = None,
    save_summaries_secs: float = 600,
    save_interval_secs: float = 600,
    log_every_n_steps: int = 1,
    summary_op: Any = None,
    sync_optimizer: Any = None,
    session_config: Any = None,
    init_feed_dict: Any = None,
    ready_op: Any = None,
    **more: Any,
) -> Any:
    """Run a train_op until the number of steps is reached, or the data ends.

    Args:
        train_op: What `create_train_op` returned.
        logdir: The directory of checkpoints and summaries.
        master: The target of the session.
        is_chief: Whether this task initializes and saves.
        global_step: The step.
        number_of_steps: The last step; by default none.
        init_op: Initializes the variables.
        init_fn: Called with the session before the first step of a new run.
        local_init_op: Initializes what is not saved.
        saver: Saves the checkpoints.
        save_summaries_secs: The time between two summaries.
        save_interval_secs: The time between two checkpoints.
        log_every_n_steps: How often to log the loss.
        summary_op: The summaries; by default all.
        sync_optimizer: The `tf.train.SyncReplicasOptimizer` of the train_op.
        session_config: A `tf.ConfigProto`.
        init_feed_dict: What `init_op` is fed.
        ready_op: Says which variables are not initialized.
        **more: `startup_delay_steps`, `trace_every_n_steps` and `ignore_live_threads` have no
            effect. Others are not supported.

    Returns:
        The last loss.
    """
    refused = sorted(set(more) - set(_WITHOUT_EFFECT))
    if refused:
        raise ValueError(f"slim.learning.train: {', '.join(refused)} is not supported")
    if any(more.values()):
        given = ", ".join(name for name, value in more.items() if value)
        LOG.info("slim.learning.train: %s has no effect here", given)
    step = global_step if global_step is not None else tf.train.get_or_create_global_step()
    scaffold = tf.train.Scaffold(
        init_op=init_op,
        init_feed_dict=init_feed_dict,
        ready_op=ready_op,
        init_fn=None if init_fn is None else lambda _, session: init_fn(session),
        local_init_op=local_init_op,
        summary_op=summary_op,
        saver=saver,
    )
    hooks = [tf.train.NanTensorHook(train_op)]
    if number_of_steps is not None:
        hooks.append(tf.train.StopAtStepHook(last_step=number_of_steps))
    if sync_optimizer is not None:
        hooks.append(sync_optimizer.make_session_run_hook(is_chief))
    loss = None
    with MonitoredTrainingSession(
        master,
        is_chief,
        checkpoint_dir=logdir,
        scaffold=scaffold,
        hooks=hooks,
        save_checkpoint_secs=save_interval_secs,
        save_summaries_steps=None,
        save_summaries_secs=save_summaries_secs,
        config=session_config,
        stop_grace_period_secs=STOP_GRACE_SECONDS,
    ) as session:
        while not session.should_stop():
            loss, at = session.run([train_op, step])
            if at % log_every_n_steps == 0:
                LOG.info("global step %d: loss = %.4f", at, loss)
    return loss
