"""The data of one task: opened, opened again for each epoch, and checked."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from phalanx.errors import ConfigurationError, DataError
from phalanx.train.context import Context
from phalanx.train.experiment import Experiment, call


@dataclass(frozen=True)
class TaskData:
    """What a task reads. Functions make the datasets; each iterator is a new pass over them."""

    train: Any
    make_evaluation: Callable[[], Any]

    def open(self, skip: int) -> Any:
        """A pass over the training data, after so many batches."""
        return iter(self.train.skip(skip) if skip else self.train)

    def open_evaluation(self) -> Any:
        """A pass over the evaluation data."""
        return iter(self.make_evaluation())


# A dataset may be made while a function is traced: there, too, it is made by plain Python.
_call = tf.autograph.experimental.do_not_convert(call)


def make_train_data(experiment: Experiment, context: Context) -> Any:
    """The experiment's training data, checked as far as that is possible without reading it."""
    return _check(_call(experiment.train_data, context), "train_data", context)


def make_eval_data(experiment: Experiment, context: Context) -> Any:
    """The experiment's evaluation data, or None."""
    # Every evaluation reads all of its data; what is served is shared, and comes once.
    data = _call(experiment.eval_data, replace(context, data_service=None))
    return None if data is None else _check(data, "eval_data", context)


def pass_over(data: Any, passes: int | None, skip: int) -> Any:
    """So many passes over the data, or passes without end, from some batches on."""
    if not skip:
        return data if passes == 1 else data.repeat(passes)
    if passes is not None:
        return data.repeat(passes).skip(skip)
    # Whole passes need not be read again, where it is known how long one is.
    length = data.cardinality()
    left = tf.where(length > 0, skip % tf.maximum(length, 1), tf.constant(skip, tf.int64))
    return data.repeat().skip(left)


def _check(data: Any, function: str, context: Context) -> Any:
    if not isinstance(data, tf.data.Dataset):
        raise ConfigurationError(
            f"{function} returned {type(data).__name__}: return a tf.data.Dataset, for instance by "
            "tf.data.Dataset.from_tensor_slices(...).batch(context.batch_size)"
        )
    is_needed = function == "train_data" or context.num_shards == 1
    if is_needed and tf.executing_eagerly() and int(data.cardinality()) == 0:
        raise DataError(
            f"{function} is empty for shard {context.shard} of {context.num_shards}: check the "
            "paths and filters, and that there are as many files as workers"
        )
    return _leave_tuning_out(data).prefetch(tf.data.AUTOTUNE)


def _leave_tuning_out(data: Any) -> Any:
    """Without a thread that tunes the dataset, unless the user asked for one.

    When a dataset is closed, TensorFlow waits until that thread wakes up: up to a minute for each
    epoch. Without it, what is left to be tuned gets as many threads as there are.
    """
    options = tf.data.Options()
    with warnings.catch_warnings():
        # In a graph TensorFlow warns that it may not know them; then none were set.
        warnings.simplefilter("ignore")
        set_by_user = data.options().autotune.enabled
    if set_by_user is None:
        options.autotune.enabled = False
    return data.with_options(options)
