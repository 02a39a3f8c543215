"""The hooks that an Estimator adds to its sessions, and the metrics of an evaluation."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.estimator.checks import warn_of_fixed_step
from phalanx.compat.tf1.estimator.run_config import RunConfig
from phalanx.compat.tf1.estimator.specs import EstimatorSpec


def make_training_hooks(
    spec: EstimatorSpec,
    config: RunConfig,
    model_dir: str,
    hooks: Sequence[Any],
    saving_listeners: Sequence[Any] | None,
) -> tuple[list[Any], list[Any]]:
    """Return the hooks of every trainer, and those of the chief besides."""
    if not any(each.op.name == "loss" for each in _list_summaries()):
        tf.summary.scalar("loss", spec.loss)
    global_step = tf.train.get_global_step()
    warn_of_fixed_step(global_step)
    worker = [*hooks, tf.train.NanTensorHook(spec.loss)]
    if config.log_step_count_steps:
        logged = {"loss": spec.loss, "step": global_step}
        worker.append(tf.train.LoggingTensorHook(logged, every_n_iter=config.log_step_count_steps))
    worker += spec.training_hooks
    _make_saver(spec.scaffold, config)
    chief = list(spec.training_chief_hooks)
    every = [*worker, *chief]
    savers = [each for each in every if isinstance(each, tf.train.CheckpointSaverHook)]
    if savers:
        # The public listeners of a hook cannot be changed, and programs expect to be called.
        if saving_listeners:
            savers[0]._listeners.extend(saving_listeners)
    elif config.save_checkpoints_secs or config.save_checkpoints_steps:
        chief.append(
            tf.train.CheckpointSaverHook(
                model_dir,
                save_secs=config.save_checkpoints_secs,
                save_steps=config.save_checkpoints_steps,
                scaffold=spec.scaffold,
                listeners=list(saving_listeners or ()),
            )
        )
    elif saving_listeners:
        raise ValueError(
            "no checkpoints are saved, so that none can be evaluated and no saving_listener is "
            "called: set save_checkpoints_steps or save_checkpoints_secs of the RunConfig"
        )
    if config.save_summary_steps:
        chief.append(
            tf.train.SummarySaverHook(
                save_steps=config.save_summary_steps, output_dir=model_dir, scaffold=spec.scaffold
            )
        )
    if config.log_step_count_steps:
        chief.append(
            tf.train.StepCounterHook(
                every_n_steps=config.log_step_count_steps, output_dir=model_dir
            )
        )
    return worker, chief


def _list_summaries() -> list[Any]:
    summaries: list[Any] = tf.get_collection(tf.GraphKeys.SUMMARIES)
    return summaries


def _make_saver(scaffold: Any, config: RunConfig) -> None:
    """Give the graph a saver with the settings of the run, unless the model_fn made one."""
    if scaffold.saver is None and not tf.get_collection(tf.GraphKeys.SAVERS):
        tf.add_to_collection(
            tf.GraphKeys.SAVERS,
            tf.train.Saver(
                sharded=True,
                max_to_keep=config.keep_checkpoint_max or None,
                keep_checkpoint_every_n_hours=config.keep_checkpoint_every_n_hours,
                defer_build=True,
                save_relative_paths=True,
            ),
        )


def make_metrics(spec: EstimatorSpec, graph: Any) -> tuple[Any, dict[str, Any]]:
    """Return the operation that adds a batch to the metrics, and the values of the metrics."""
    metrics = {}
    updates = []
    for name, each in spec.eval_metric_ops.items():
        if hasattr(each, "updates"):
            metrics[name] = each.result()
            updates += each.updates
            for variable in each.variables:
                if variable not in tf.local_variables():
                    tf.add_to_collection(tf.GraphKeys.LOCAL_VARIABLES, variable)
        else:
            metrics[name], update = each
            updates.append(update)
    if "loss" not in metrics:
        metrics["loss"], update = tf.metrics.mean(spec.loss)
        updates.append(update)
    if "global_step" in metrics:
        raise ValueError("eval_metric_ops has a metric global_step, which is the step: rename it")
    metrics["global_step"] = tf.train.get_global_step(graph)
    return tf.group(*updates), metrics


class StopAfterRunsHook(tf.train.SessionRunHook):
    """Stops after so many runs of the session."""

    def __init__(self, runs: int) -> None:
        self._left = runs

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._left -= 1
        if self._left <= 0:
            run_context.request_stop()


class EvaluationSummaryHook(tf.train.SessionRunHook):
    """Writes the summaries of the evaluation graph once, with the first batch."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._is_written = False

    def begin(self) -> None:
        self._summary = tf.summary.merge_all()
        self._step = tf.train.get_global_step()

    def before_run(self, run_context: Any) -> Any:
        if self._summary is None or self._is_written:
            return None
        return tf.train.SessionRunArgs([self._summary, self._step])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results is not None:
            self._is_written = True
            summary, step = run_values.results
            tf.summary.FileWriterCache.get(self._directory).add_summary(summary, step)


def list_numbers(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of an evaluation that are numbers, without the step."""
    return {
        name: float(value)
        for name, value in results.items()
        if name != "global_step" and np.ndim(value) == 0 and np.asarray(value).dtype.kind in "fiu"
    }


def write_results(directory: str, results: dict[str, Any], checkpoint: str | None) -> None:
    """Write the metrics of an evaluation as summaries."""
    summary = tf.Summary()
    for name, value in results.items():
        if name == "global_step":
            continue
        if isinstance(value, bytes):
            summary.value.extend(tf.Summary.FromString(value).value)
        elif np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number):
            summary.value.add(tag=name, simple_value=float(value))
        elif isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.number):
            summary.value.add(tag=name, tensor=tf.make_tensor_proto(value))
    # In a graph, because eager execution refuses this writer.
    with tf.Graph().as_default():
        writer = tf.summary.FileWriterCache.get(directory)
    writer.add_summary(summary, int(results["global_step"]))
    writer.flush()
    tf.logging.info("Evaluation of %s: %s", checkpoint, results)
