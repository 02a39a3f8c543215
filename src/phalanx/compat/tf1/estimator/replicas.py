"""Trains and evaluates the graph of a model_fn on several devices of one process."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.estimator.inputs import DatasetHook, call_user, split_inputs
from phalanx.compat.tf1.estimator.run_config import RunConfig
from phalanx.compat.tf1.estimator.specs import EstimatorSpec, ModeKeys


def strategy_of(config: RunConfig, mode: str) -> Any:
    """Return the strategy of a mode if it has several replicas; otherwise None."""
    name = "train_distribute" if mode == ModeKeys.TRAIN else "eval_distribute"
    both = config.experimental_distribute
    given = getattr(config, name) or getattr(both, name, None)
    return given if getattr(given, "num_replicas_in_sync", 1) > 1 else None


def provide_devices(config: Any, strategy: Any) -> Any:
    """Return the settings of a session with as many CPU devices as a strategy uses.

    Args:
        config: A `tf.ConfigProto`.
        strategy: The strategy, or None.
    """
    provided = tf.ConfigProto()
    provided.CopyFrom(config)
    devices = strategy.extended.worker_devices if strategy is not None else ()
    numbers = [
        device.device_index or 0
        for device in map(tf.DeviceSpec.from_string, devices)
        if device.device_type == "CPU"
    ]
    if numbers and provided.device_count.get("CPU", 1) <= max(numbers):
        provided.device_count["CPU"] = max(numbers) + 1
    return provided


def build_on_replicas(
    strategy: Any,
    input_fn: Callable[..., Any],
    arguments: dict[str, Any],
    model_fn: Callable[[Any, Any], EstimatorSpec],
) -> tuple[tuple[Any, ...], EstimatorSpec]:
    """Call a model_fn for each replica, with a batch of its own, in the scope of the strategy.

    The optimizers of `tf.train` average the gradients, and `tf.metrics` count all replicas.

    Args:
        strategy: The strategy.
        input_fn: The function of the user, which must return a dataset.
        arguments: What the input_fn may take.
        model_fn: Builds the graph of a replica from features and labels.

    Returns:
        The hooks of the input, and one spec for all replicas.
    """

    def make_dataset(context: Any) -> Any:
        dataset = call_user(input_fn, {**arguments, "input_context": context})
        if not isinstance(dataset, (tf.data.Dataset, tf.compat.v2.data.Dataset)):
            raise ValueError(
                f"the input_fn returned a {type(dataset).__name__}, but {type(strategy).__name__} "
                f"gives each of {strategy.num_replicas_in_sync} replicas a batch of its own: "
                "return a tf.data.Dataset"
            )
        return dataset

    iterator = strategy.make_input_fn_iterator(make_dataset)
    specs: list[EstimatorSpec] = []

    def build(batch: Any) -> Any:
        spec = model_fn(*split_inputs(batch))
        if spec.mode == ModeKeys.EVAL:
            # A mean over the replicas can only be counted on each of them.
            mean = tf.metrics.mean(spec.loss)
            spec = spec._replace(eval_metric_ops={"loss": mean, **spec.eval_metric_ops})
        specs.append(spec)
        return spec.loss

    # Optimizers sum gradients unless they know that the loss is a mean; that has no public name.
    with strategy._scale_loss_for_estimator_enabled():
        losses = strategy.extended.call_for_each_replica(
            tf.autograph.experimental.do_not_convert(build), args=(iterator.get_next(),)
        )
    loss = strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)
    return (DatasetHook(iterator),), _merge(specs, loss)


def _merge(specs: Sequence[EstimatorSpec], loss: Any) -> EstimatorSpec:
    """Return the spec of the first replica, with the operations of all of them."""
    first = specs[0]
    metrics = {}
    for name, metric in first.eval_metric_ops.items():
        if not isinstance(metric, tuple):
            raise ValueError(
                f"the metric {name!r} is a {type(metric).__name__}, which cannot be counted on "
                "several replicas: use a function of tf.metrics"
            )
        metrics[name] = metric[0], tf.group(*(each.eval_metric_ops[name][1] for each in specs))
    ops = [each.train_op for each in specs if each.train_op is not None]
    train_op = tf.group(*ops) if ops else None
    return first._replace(loss=loss, train_op=train_op, eval_metric_ops=metrics)
