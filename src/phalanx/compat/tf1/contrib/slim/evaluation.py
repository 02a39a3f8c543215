"""tf.contrib.slim.evaluation: evaluates checkpoints, once or as they come."""

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

checkpoints_iterator = tf.train.checkpoints_iterator


def evaluate_once(
    master: str,
    checkpoint_path: str,
    logdir: str | None,
    num_evals: int = 1,
    initial_op: Any = None,
    initial_op_feed_dict: Any = None,
    eval_op: Any = None,
    eval_op_feed_dict: Any = None,
    final_op: Any = None,
    final_op_feed_dict: Any = None,
    summary_op: Any = None,
    summary_op_feed_dict: Any = None,
    variables_to_restore: Any = None,
    session_config: Any = None,
    hooks: Sequence[Any] | None = None,
) -> Any:
    """Evaluate a checkpoint, and write the summaries.

    Args:
        master: The target of the session.
        checkpoint_path: The checkpoint.
        logdir: The directory of the summaries; None writes none.
        num_evals: How often to run `eval_op`.
        initial_op: Runs first.
        initial_op_feed_dict: What to feed it.
        eval_op: Updates the metrics.
        eval_op_feed_dict: What to feed it.
        final_op: Runs last.
        final_op_feed_dict: What to feed it.
        summary_op: The summaries; by default all.
        summary_op_feed_dict: What to feed it.
        variables_to_restore: The variables, or the variables by their names in the checkpoint; by
            default all.
        session_config: A `tf.ConfigProto`.
        hooks: Hooks of the session.

    Returns:
        The value of `final_op`.
    """
    step = tf.train.get_or_create_global_step()
    given = tf.global_variables() if variables_to_restore is None else variables_to_restore
    restored = dict(given) if isinstance(given, Mapping) else {v.op.name: v for v in given}
    # The program need not know of the step, which the summaries have.
    saver = tf.train.Saver({step.op.name: step, **restored})
    summaries = tf.summary.merge_all() if summary_op is None else summary_op
    scaffold = tf.train.Scaffold(
        saver=saver, init_op=initial_op, init_feed_dict=initial_op_feed_dict
    )
    creator = tf.train.ChiefSessionCreator(
        scaffold, master, session_config, checkpoint_filename_with_path=checkpoint_path
    )
    result = None
    with tf.train.MonitoredSession(creator, list(hooks or ())) as session:
        for _ in range(num_evals if eval_op is not None else 0):
            session.run(eval_op, eval_op_feed_dict)
        if summaries is not None and logdir is not None:
            text, at = session.run([summaries, step], summary_op_feed_dict)
            with tf.summary.FileWriter(logdir) as writer:
                writer.add_summary(text, at)
        if final_op is not None:
            result = session.run(final_op, final_op_feed_dict)
    return result


def evaluation_loop(
    master: str,
    checkpoint_dir: str,
    logdir: str | None,
    num_evals: int = 1,
    eval_interval_secs: float = 60,
    max_number_of_evaluations: int | None = None,
    timeout: float | None = None,
    **more: Any,
) -> Any:
    """Evaluate each new checkpoint of a directory; see `evaluate_once`.

    Args:
        master: The target of the session.
        checkpoint_dir: The directory of the checkpoints.
        logdir: The directory of the summaries.
        num_evals: How often to run `eval_op`.
        eval_interval_secs: The shortest time between two evaluations.
        max_number_of_evaluations: Ends after so many; by default never.
        timeout: Ends when there was no new checkpoint for so many seconds.
        **more: The other arguments of `evaluate_once`.

    Returns:
        The last value of `final_op`.
    """
    result = None
    found = checkpoints_iterator(checkpoint_dir, eval_interval_secs, timeout)
    for number, path in enumerate(found, 1):
        result = evaluate_once(master, path, logdir, num_evals, **more)
        if max_number_of_evaluations is not None and number >= max_number_of_evaluations:
            break
    return result
