"""tf.contrib.metrics: streaming metrics, which took the predictions before the labels."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import tensorflow.compat.v1 as tf

Metric = Callable[..., tuple[Any, Any]]


def _swap(metric: Metric) -> Metric:
    @wraps(metric)
    def call(predictions: Any, labels: Any, *args: Any, **more: Any) -> tuple[Any, Any]:
        return metric(labels, predictions, *args, **more)

    return call


streaming_accuracy = _swap(tf.metrics.accuracy)
streaming_auc = _swap(tf.metrics.auc)
streaming_false_negatives = _swap(tf.metrics.false_negatives)
streaming_false_positives = _swap(tf.metrics.false_positives)
streaming_mean = tf.metrics.mean
streaming_mean_absolute_error = _swap(tf.metrics.mean_absolute_error)
streaming_mean_cosine_distance = _swap(tf.metrics.mean_cosine_distance)
streaming_mean_iou = _swap(tf.metrics.mean_iou)
streaming_mean_relative_error = _swap(tf.metrics.mean_relative_error)
streaming_mean_squared_error = _swap(tf.metrics.mean_squared_error)
streaming_mean_tensor = tf.metrics.mean_tensor
streaming_percentage_less = tf.metrics.percentage_below
streaming_precision = _swap(tf.metrics.precision)
streaming_recall = _swap(tf.metrics.recall)
streaming_root_mean_squared_error = _swap(tf.metrics.root_mean_squared_error)
streaming_sparse_precision_at_k = _swap(tf.metrics.precision_at_k)
streaming_sparse_recall_at_k = _swap(tf.metrics.recall_at_k)
streaming_true_negatives = _swap(tf.metrics.true_negatives)
streaming_true_positives = _swap(tf.metrics.true_positives)


def streaming_recall_at_k(
    predictions: Any, labels: Any, k: int, weights: Any = None, **more: Any
) -> tuple[Any, Any]:
    """Return how often the label is among the k largest predictions, and the update."""
    is_found = tf.cast(tf.nn.in_top_k(predictions, labels, k), tf.float32)
    metric: tuple[Any, Any] = tf.metrics.mean(is_found, weights, **more)
    return metric


def accuracy(predictions: Any, labels: Any, weights: Any = None, name: str | None = None) -> Any:
    """Return the part of the predictions that equal the labels."""
    with tf.name_scope(name, "accuracy", [predictions, labels]):
        is_correct = tf.cast(tf.equal(predictions, labels), tf.float32)
        if weights is None:
            return tf.reduce_mean(is_correct)
        return tf.reduce_sum(is_correct * weights) / tf.reduce_sum(
            tf.ones_like(is_correct) * weights
        )


def aggregate_metrics(*value_update_tuples: tuple[Any, Any]) -> tuple[list[Any], list[Any]]:
    """Return the values of metrics, and their updates.

    Args:
        *value_update_tuples: The metrics.

    Returns:
        Two lists.
    """
    return [value for value, _ in value_update_tuples], [
        update for _, update in value_update_tuples
    ]


def aggregate_metric_map(
    names_to_tuples: Mapping[str, tuple[Any, Any]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of metrics by name, and their updates by name.

    Args:
        names_to_tuples: The metrics.

    Returns:
        Two dicts.
    """
    return (
        {name: value for name, (value, _) in names_to_tuples.items()},
        {name: update for name, (_, update) in names_to_tuples.items()},
    )
