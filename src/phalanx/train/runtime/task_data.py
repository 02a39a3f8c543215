"""The data of one task: made by the experiment, checked, and opened for each epoch."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import tensorflow as tf

from phalanx.errors import ConfigurationError, DataError
from phalanx.train.context import Context
from phalanx.train.experiment import Experiment, call
from phalanx.train.types import Dataset, DatasetIterator


@dataclass(frozen=True)
class TaskData:
    """The datasets of a task."""

    train: Dataset
    make_evaluation: Callable[[], Dataset]

    def open(self, skip: int) -> DatasetIterator:
        """Iterate over the training data, from the batch `skip` on."""
        return iter(self.train.skip(skip) if skip else self.train)

    def open_evaluation(self) -> DatasetIterator:
        return iter(self.make_evaluation())


# AutoGraph must not convert the user's function when a dataset is made inside a tf.function.
_call = tf.autograph.experimental.do_not_convert(call)


def make_train_data(experiment: Experiment, context: Context) -> Dataset:
    """Make the training data and check it as far as possible without reading it."""
    return _check(_call(experiment.train_data, context), "train_data", context)


def make_eval_data(experiment: Experiment, context: Context) -> Dataset:
    """Make the evaluation data; None if the experiment has none."""
    # Every evaluation reads all of its data. The tf.data service would serve each batch only once.
    data = _call(experiment.eval_data, replace(context, data_service=None))
    return None if data is None else _check(data, "eval_data", context)


def repeat_and_skip(data: Dataset, epochs: int | None, skip: int) -> Dataset:
    """Repeat a dataset, without end if `epochs` is None, and skip the first batches."""
    if not skip:
        return data if epochs == 1 else data.repeat(epochs)
    if epochs is not None:
        return data.repeat(epochs).skip(skip)
    # Where the length is known, do not read whole epochs only to skip them.
    length = data.cardinality()
    rest = tf.where(length > 0, skip % tf.maximum(length, 1), tf.constant(skip, tf.int64))
    return data.repeat().skip(rest)


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
