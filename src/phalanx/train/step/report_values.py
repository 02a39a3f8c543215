"""The values in a report: sums over the examples of a batch, and the means of such sums."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.autograph import unconverted
from phalanx.train.types import Array, Batch, KerasVariable, Metric, Tensor
from phalanx.train.variables.sparse_tables import merge_rows

GetValue: TypeAlias = Callable[[KerasVariable], Tensor]
"""Returns the value that a variable has in a step."""


@unconverted
def sum_values(
    names: Sequence[str], values: Mapping[str, Tensor], count: Tensor | float
) -> list[Tensor | float]:
    """Return the sum of each value over a batch, then the number of examples that have it."""
    sums = [tf.cast(values[n], tf.float32) * count if n in values else 0.0 for n in names]
    return [*sums, *(count if name in values else 0.0 for name in names)]


def read_means(names: Sequence[str], sums: Array) -> dict[str, float]:
    """Return the mean of each value over the examples that have it."""
    counts = sums[len(names) : 2 * len(names)]
    totals = zip(names, sums, counts, strict=False)
    return {name: float(total) / float(count) for name, total, count in totals if count > 0}


@unconverted
def batch_length(batch: Batch) -> Tensor:
    """Return how many examples a batch has."""
    first = tf.nest.flatten(batch, expand_composites=False)[0]
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    return first.nrows() if isinstance(first, tf.RaggedTensor) else tf.shape(first)[0]


@unconverted
def mean_over_batch(
    value: Tensor | None, batch: Batch, name: str, sample_weight: Tensor | None = None
) -> Tensor:
    """Return the mean of what a step returned: one number, or one for each example."""
    if value is None:
        raise ConfigurationError(f"the {name} is None: return one number, or one per example")
    value = tf.convert_to_tensor(value)
    if value.shape.rank == 0:
        if sample_weight is not None:
            raise ConfigurationError(
                f"the data has sample weights, but the {name} is one number for the whole batch: "
                "return one number per example, or use a loss of Keras"
            )
        return value
    length = batch_length(batch)
    static = tf.get_static_value(length)
    if value.shape.rank != 1 or (
        static is not None and value.shape[0] is not None and value.shape[0] != static
    ):
        raise ConfigurationError(
            f"the {name} has the shape {tuple(value.shape)} for a batch of "
            f"{'?' if static is None else static} examples: return one number, or one per example"
        )
    if static is None and value.shape[0] is not None:
        tf.debugging.assert_equal(
            length, value.shape[0], f"the {name} must be one number, or one for each example"
        )
    if sample_weight is not None:
        value = value * tf.cast(sample_weight, value.dtype)
    return tf.reduce_mean(value)


def weigh_by_examples(means: Sequence[Metric], get_value: GetValue, count: Tensor) -> GetValue:
    """Weigh means, such as the loss of each output, by the number of examples.

    Keras counts a batch once, whatever its size. The parts of a batch on several replicas may have
    different sizes.
    """
    weights: dict[int, Tensor] = {}
    for mean in means:
        weight = tf.math.divide_no_nan(count, tf.cast(get_value(mean.count), tf.float32))
        weights |= {id(mean.total): weight, id(mean.count): weight}

    def get_weighed(variable: KerasVariable) -> Tensor:
        value = get_value(variable)
        return value * weights[id(variable)] if id(variable) in weights else value

    return get_weighed


@unconverted
def set_norm(report: Tensor, gradients: Sequence[Tensor], loss_scale: Tensor) -> Tensor:
    """Put the norm of the gradients into the last element of a report."""
    merged = [merge_rows(gradient) for gradient in gradients]
    norm = tf.cast(tf.linalg.global_norm(merged), tf.float32) / loss_scale
    return tf.concat([report[:-1], [norm * report[0]]], 0)
