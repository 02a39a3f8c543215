"""The data of one task: made by the experiment, checked, and opened for each epoch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import tensorflow as tf

from phalanx.errors import ConfigurationError, DataError
from phalanx.train.context import Context
from phalanx.train.experiment import Experiment, call
from phalanx.train.step.report_values import batch_length
from phalanx.train.types import Dataset, DatasetIterator, Tensor


@dataclass(frozen=True)
class TaskData:
    """The datasets of a task."""

    train: Dataset
    make_evaluation: Callable[[], Dataset]
    make_train: Callable[[int], Dataset] | None = None
    """Makes the training data of a run that has completed so many passes over it."""

    def continue_after(self, passes: int) -> TaskData:
        """Return the data of a restarted run that has completed so many passes over it."""
        if not passes or self.make_train is None:
            return self
        return replace(self, train=self.make_train(passes))

    def open(self, skip: int) -> DatasetIterator:
        """Iterate over the training data, from the batch `skip` on."""
        return iter(self.train.skip(skip) if skip else self.train)

    def open_evaluation(self) -> DatasetIterator:
        return iter(self.make_evaluation())


# AutoGraph must not convert the user's function when a dataset is made inside a tf.function.
_call = tf.autograph.experimental.do_not_convert(call)


def make_train_data(experiment: Experiment, context: Context) -> Dataset:
    """Make the training data and check it as far as possible without reading it."""
    data = _check(_call(experiment.train_data, context), "train_data", context)
    return skip_passes(data, context.epoch) if context.epoch else data


def make_eval_data(experiment: Experiment, context: Context) -> Dataset:
    """Make the evaluation data; None if the experiment has none."""
    # Every evaluation reads all of its data. The tf.data service would serve each batch only once.
    data = _call(experiment.eval_data, replace(context, data_service=None))
    return None if data is None else _check(data, "eval_data", context)


def skip_passes(data: Dataset, count: int | Tensor) -> Dataset:
    """Let a dataset begin with the order of a later pass over it, without reading it.

    A shuffle takes the next order whenever an iterator is made.
    """
    variant = tf.data.experimental.to_variant(data)
    specs = tf.nest.flatten(data.element_spec)
    is_dense = [isinstance(spec, tf.TensorSpec) for spec in specs]

    def make_iterator(number: Tensor) -> list[Tensor]:
        iterator = tf.raw_ops.AnonymousIteratorV3(
            output_types=[
                s.dtype if d else tf.variant for s, d in zip(specs, is_dense, strict=True)
            ],
            output_shapes=[
                s.shape if d else tf.TensorShape(None) for s, d in zip(specs, is_dense, strict=True)
            ],
        )
        tf.raw_ops.MakeIterator(dataset=variant, iterator=iterator)
        return [number + 1]

    count = tf.cast(count, tf.int64)
    done = tf.while_loop(lambda number: number < count, make_iterator, [tf.constant(0, tf.int64)])
    with tf.control_dependencies(done):
        variant = tf.identity(variant)
    return tf.data.experimental.from_variant(variant, data.element_spec)


def repeat_and_skip(data: Dataset, epochs: int | None, skip: int | Tensor) -> Dataset:
    """Repeat a dataset, without end if `epochs` is None, and skip the first batches."""
    if isinstance(skip, int) and not skip:
        return data if epochs == 1 else data.repeat(epochs)
    # Where the length is known, do not read whole epochs only to skip them.
    length, skip = data.cardinality(), tf.cast(skip, tf.int64)
    passes = tf.where(length > 0, skip // tf.maximum(length, 1), tf.constant(0, tf.int64))
    rest = tf.where(length > 0, skip % tf.maximum(length, 1), skip)
    count = None if epochs is None else tf.maximum(epochs - passes, 0)
    return skip_passes(data, passes).repeat(count).skip(rest)


def drop_empty_batches(data: Dataset) -> Dataset:
    """Leave out batches without examples: those that were smaller than the number of replicas."""
    return data.filter(lambda *batch: batch_length(batch) > 0)


def _check(data: Dataset, function: str, context: Context) -> Dataset:
    if not isinstance(data, tf.data.Dataset):
        raise ConfigurationError(
            f"{function} returned {type(data).__name__}: return a tf.data.Dataset, for instance "
            "tf.data.Dataset.from_tensor_slices(...).batch(context.batch_size)"
        )
    is_needed = function == "train_data" or context.num_shards == 1
    if is_needed and tf.executing_eagerly() and int(data.cardinality()) == 0:
        raise DataError(
            f"{function} is empty for shard {context.shard} of {context.num_shards}: check the "
            "paths and filters, and that there are at least as many files as workers"
        )
    return _disable_autotune(data).prefetch(tf.data.AUTOTUNE)


def _disable_autotune(data: Dataset) -> Dataset:
    """Disable the thread that tunes a dataset, unless the user has enabled it.

    When a dataset is closed, TensorFlow waits until that thread wakes up: up to a minute for each
    epoch. Without it, AUTOTUNE means as many threads as there are cores.
    """
    options = tf.data.Options()
    with warnings.catch_warnings():
        # In a graph TensorFlow warns that it may not know the options; then none were set.
        warnings.simplefilter("ignore")
        set_by_user = data.options().autotune.enabled
    if set_by_user is None:
        options.autotune.enabled = False
    return data.with_options(options)
