"""The inputs of embedding layers: indices in dense, ragged or sparse tensors, and their rows."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.types import Tensor

COMBINERS = ("sum", "mean", "sqrtn")
SPARSE = (tf.RaggedTensor, tf.SparseTensor)


def hash_values(values: Tensor, buckets: int) -> Tensor:
    """Return a bucket for each integer or string: the same in every process and on every host."""
    if values.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(values, buckets)
    # The finalizer of SplitMix64: it spreads indices evenly that differ in a few bits only.
    mixed = tf.bitcast(tf.cast(values, tf.int64), tf.uint64) + _constant(0x9E3779B97F4A7C15)
    mixed = _xor_shift(mixed, 30) * _constant(0xBF58476D1CE4E5B9)
    mixed = _xor_shift(mixed, 27) * _constant(0x94D049BB133111EB)
    mixed = _xor_shift(mixed, 31)
    # TensorFlow divides signed integers only.
    return tf.cast(tf.bitwise.right_shift(mixed, _constant(1)), tf.int64) % buckets


def _xor_shift(values: Tensor, bits: int) -> Tensor:
    return tf.bitwise.bitwise_xor(values, tf.bitwise.right_shift(values, _constant(bits)))


def _constant(value: int) -> Tensor:
    return tf.constant(value, tf.uint64)


@dataclass(frozen=True)
class Bags:
    """The indices of each example, and how much each of them counts.

    The examples may have any number of indices: `examples[i]` is the example of `indices[i]`.
    """

    indices: Tensor
    examples: Tensor
    count: Tensor
    weights: Tensor | None = None

    @classmethod
    def read(cls, inputs: Tensor, weights: Tensor | None = None) -> Bags:
        """Read a tensor of two dimensions, dense, ragged or sparse, and weights of its kind."""
        kinds = {type(t) for t in (inputs, weights) if isinstance(t, SPARSE)}
        if weights is not None and kinds - ({type(inputs)} & {type(weights)}):
            raise ConfigurationError(
                f"the inputs are a {type(inputs).__name__}, but their weights are a "
                f"{type(weights).__name__}: give one weight for each index, in a tensor of the "
                "same kind"
            )
        if len(inputs.shape) != 2:
            raise ConfigurationError(
                f"the inputs have the shape {tuple(inputs.shape)}: a combiner needs two "
                "dimensions, the examples and the indices of each"
            )
        if isinstance(inputs, tf.RaggedTensor):
            flat = None if weights is None else weights.flat_values
            return cls(inputs.flat_values, inputs.value_rowids(), inputs.nrows(), flat)
        if isinstance(inputs, tf.SparseTensor):
            flat = None if weights is None else weights.values
            return cls(inputs.values, inputs.indices[:, 0], inputs.dense_shape[0], flat)
        count, width = tf.unstack(tf.shape(inputs, tf.int64))
        flat = None if weights is None else tf.reshape(weights, [-1])
        examples = tf.repeat(tf.range(count), width)
        return cls(tf.reshape(inputs, [-1]), examples, count, flat)

    def combine(self, rows: Tensor, combiner: str, counts: Tensor | None = None) -> Tensor:
        """Combine the rows of each example; an example without any gets zeros.

        Args:
            rows: A row for each index.
            combiner: "sum", "mean" (the sum over the sum of the weights) or "sqrtn" (the sum over
                the root of the sum of their squares).
            counts: Which indices count; all, if not given.
        """
        weights = tf.ones_like(rows[:, 0]) if self.weights is None else self.weights
        weights = tf.cast(weights, rows.dtype)
        if counts is not None:
            weights *= tf.cast(counts, rows.dtype)
        combined = self._add(rows * weights[:, None])
        if combiner == "mean":
            return tf.math.divide_no_nan(combined, self._add(weights)[:, None])
        if combiner == "sqrtn":
            return tf.math.divide_no_nan(combined, tf.sqrt(self._add(weights**2))[:, None])
        return combined

    def _add(self, values: Tensor) -> Tensor:
        return tf.math.unsorted_segment_sum(values, self.examples, self.count)
