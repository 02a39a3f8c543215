"""What `tf.parse_example` needs to read the features, labels and weights of canned estimators."""

from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf


def classifier_parse_example_spec(
    feature_columns: Sequence[Any],
    label_key: str,
    label_dtype: Any = tf.int64,
    label_default: Any = None,
    weight_column: Any = None,
) -> dict[str, Any]:
    """Return the features of an Example for a classifier.

    Args:
        feature_columns: The columns of `tf.feature_column`.
        label_key: The feature with the class.
        label_dtype: `tf.int64`, or `tf.string` with a label vocabulary.
        label_default: The class of Examples without one; None refuses them.
        weight_column: The weight of an Example, as a name or a numeric column.

    Returns:
        The spec by the name of the feature.
    """
    spec: dict[str, Any] = tf.feature_column.make_parse_example_spec(feature_columns)
    if label_key in spec:
        raise ValueError(f"the label {label_key!r} is also a feature: remove its column")
    spec[label_key] = tf.FixedLenFeature((1,), label_dtype, label_default)
    if weight_column is not None:
        is_name = isinstance(weight_column, str)
        column = tf.feature_column.numeric_column(weight_column) if is_name else weight_column
        weights = tf.feature_column.make_parse_example_spec([column])
        if not spec.keys().isdisjoint(weights):
            raise ValueError(f"the weight {column.name!r} is also a feature: remove its column")
        spec |= weights
    return spec


def regressor_parse_example_spec(
    feature_columns: Sequence[Any],
    label_key: str,
    label_dtype: Any = tf.float32,
    label_default: Any = None,
    label_dimension: int = 1,
    weight_column: Any = None,
) -> dict[str, Any]:
    """Return the features of an Example for a regressor.

    Args:
        feature_columns: The columns of `tf.feature_column`.
        label_key: The feature with the value.
        label_dtype: The type of the value.
        label_default: The value of Examples without one; None refuses them.
        label_dimension: The number of values.
        weight_column: The weight of an Example, as a name or a numeric column.

    Returns:
        The spec by the name of the feature.
    """
    spec = classifier_parse_example_spec(
        feature_columns, label_key, label_dtype, None, weight_column
    )
    spec[label_key] = tf.FixedLenFeature((label_dimension,), label_dtype, label_default)
    return spec
