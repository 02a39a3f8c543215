"""Trains and evaluates the graph of a model_fn on several devices of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.estimator.inputs import DatasetHook, call_user, split_inputs
from phalanx.compat.tf1.estimator.run_config import RunConfig
from phalanx.compat.tf1.estimator.specs import EstimatorSpec, ModeKeys


class Replicas(NamedTuple):
    """The graph of a model_fn on several replicas."""

    hooks: tuple[Any, ...]
    """The hooks of the input."""
    spec: EstimatorSpec
    updates: Sequence[Any] = ()
    """What adds the batch of each replica to the metrics."""
    queues: BatchQueues | None = None
    """The batches of an evaluation on several replicas."""


class BatchQueues:
    """Has a batch for each replica, or for some of them at the end of the data.

    If replicas read their batches in the step that counts them, the end of the data at one replica
    would cancel the others, which have a batch.
    """

    def __init__(self, dataset: Any, replicas: int) -> None:
        iterator = tf.data.make_initializable_iterator(dataset)
        self.hook = DatasetHook(iterator)
        self._spec = dataset.element_spec
        parts = tf.nest.flatten(self._spec, expand_composites=True)
        self._shapes = [part.shape for part in parts]
        self._queues = [
            tf.queue.FIFOQueue(1, [part.dtype for part in parts]) for _ in range(replicas)
        ]
        self._fill = [self._fill_queue(iterator, queue) for queue in self._queues]

    def _fill_queue(self, iterator: Any, queue: Any) -> Any:
        optional = tf.data.experimental.get_next_as_optional(iterator)

        def enqueue() -> Any:
            parts = tf.nest.flatten(optional.get_value(), expand_composites=True)
            with tf.control_dependencies([queue.enqueue(parts)]):
                return tf.constant(True)

        return tf.cond(optional.has_value(), enqueue, lambda: tf.constant(False))

    def take(self, replica: int) -> Any:
        """Return the batch of a replica, which waits until there is one."""
        parts = self._queues[replica].dequeue()
        parts = [parts] if tf.is_tensor(parts) else parts
        for part, shape in zip(parts, self._shapes, strict=True):
            part.set_shape(shape)
        return tf.nest.pack_sequence_as(self._spec, parts, expand_composites=True)

    def run(self, session: Any, update: Any, updates: Sequence[Any]) -> bool:
        """Count the next batches; return False at the end of the data.

        Hooks may ask for tensors of any replica, so that they are only called when all have a
        batch.

        Args:
            session: A `MonitoredSession`.
            update: Counts the batches of all replicas.
            updates: Count the batch of each replica.
        """
        filled = session.run_step_fn(lambda step_context: step_context.session.run(self._fill))
        if all(filled):
            session.run(update)
            return True
        rest = [each for each, is_filled in zip(updates, filled, strict=True) if is_filled]
        session.run_step_fn(lambda step_context: step_context.session.run(rest))
        return False


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
) -> Replicas:
    """Call a model_fn for each replica, with a batch of its own, in the scope of the strategy.

    The optimizers of `tf.train` average the gradients, and `tf.metrics` count all replicas.

    Args:
        strategy: The strategy.
        input_fn: The function of the user, which must return a dataset.
        arguments: What the input_fn may take.
        model_fn: Builds the graph of a replica from features and labels.

    Returns:
        What the model_fn has built, as one spec for all replicas.
    """
    evaluates = arguments["mode"] == ModeKeys.EVAL

    def make_dataset(context: Any) -> Any:
        dataset = call_user(input_fn, {**arguments, "input_context": context})
        if not isinstance(dataset, (tf.data.Dataset, tf.compat.v2.data.Dataset)):
            raise ValueError(
                f"the input_fn returned a {type(dataset).__name__}, but {type(strategy).__name__} "
                f"gives each of {strategy.num_replicas_in_sync} replicas a batch of its own: "
                "return a tf.data.Dataset"
            )
        return dataset

    queues = iterator = None
    batches: tuple[Any, ...] = ()
    if evaluates:
        with tf.device("/cpu:0"):
            replicas = strategy.num_replicas_in_sync
            context = tf.distribute.InputContext(num_replicas_in_sync=replicas)
            queues = BatchQueues(make_dataset(context), replicas)
    else:
        iterator = strategy.make_input_fn_iterator(make_dataset)
        batches = (iterator.get_next(),)
    by_replica: dict[int, EstimatorSpec] = {}

    def build(*batch: Any) -> Any:
        replica = int(tf.get_static_value(_current_replica()))
        if queues is not None:
            with tf.device("/cpu:0"):
                batch = (queues.take(replica),)
        spec = model_fn(*split_inputs(*batch))
        if evaluates:
            # A mean over the replicas can only be counted on each of them.
            mean = tf.metrics.mean(spec.loss)
            spec = spec._replace(eval_metric_ops={"loss": mean, **spec.eval_metric_ops})
        by_replica[replica] = spec
        return spec.loss

    # Optimizers sum gradients unless they know that the loss is a mean; that has no public name.
    with strategy._scale_loss_for_estimator_enabled():
        losses = strategy.extended.call_for_each_replica(
            tf.autograph.experimental.do_not_convert(build), args=batches
        )
    loss = strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)
    hook = DatasetHook(iterator) if queues is None else queues.hook
    specs = [by_replica[replica] for replica in sorted(by_replica)]
    merged = _merge(specs, loss)
    updates = [tf.group(*(op for _, op in each.eval_metric_ops.values())) for each in specs]
    return Replicas((hook,), merged, updates, queues)


def _current_replica() -> Any:
    return tf.distribute.get_replica_context().replica_id_in_sync_group


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
