"""Heads: the loss, metrics and predictions of canned estimators."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.estimator.export import (
    ClassificationOutput,
    ExportOutput,
    PredictOutput,
    RegressionOutput,
)
from phalanx.compat.tf1.estimator.specs import EstimatorSpec, ModeKeys

_SUM = tf.losses.Reduction.SUM


class Head:
    """Turns logits and labels into an EstimatorSpec."""

    def __init__(
        self, logits_dimension: int, weight_column: Any, loss_reduction: str, name: str | None
    ) -> None:
        self.logits_dimension = logits_dimension
        self._weight_column = weight_column
        self._loss_reduction = loss_reduction
        self.name = name

    def create_estimator_spec(
        self,
        features: Any,
        mode: str,
        logits: Any,
        labels: Any = None,
        train_op_fn: Callable[[Any], Any] | None = None,
        optimizer: Any = None,
        **more: Any,
    ) -> EstimatorSpec:
        """Return the EstimatorSpec of a model with these logits.

        Args:
            features: The features, of which one may be the weights.
            mode: One of `ModeKeys`.
            logits: A tensor of the shape [batch, logits_dimension].
            labels: The labels; None for predictions.
            train_op_fn: Returns the train_op for a loss.
            optimizer: Or the optimizer that minimizes the loss.
            **more: Not used.

        Returns:
            The EstimatorSpec.
        """
        predictions = self._predict(logits)
        if mode == ModeKeys.PREDICT:
            outputs = self._make_outputs(predictions)
            return EstimatorSpec(mode, predictions, export_outputs=outputs)
        labels = self._prepare_labels(labels)
        losses = self._compute_losses(logits, labels)
        weights = self._get_weights(features)
        loss = tf.losses.compute_weighted_loss(losses, weights, reduction=self._loss_reduction)
        if mode == ModeKeys.EVAL:
            metrics = self._make_metrics(labels, predictions, weights)
            metrics["average_loss"] = tf.metrics.mean(losses, weights)
            return EstimatorSpec(mode, predictions, loss, eval_metric_ops=metrics)
        if (train_op_fn is None) == (optimizer is None):
            raise ValueError("create_estimator_spec: set train_op_fn or optimizer, one of them")
        train_op = (
            train_op_fn(loss)
            if train_op_fn is not None
            else optimizer.minimize(loss, tf.train.get_global_step())
        )
        return EstimatorSpec(mode, predictions, loss, train_op)

    def _predict(self, logits: Any) -> dict[str, Any]:
        raise NotImplementedError

    def _make_outputs(self, predictions: Mapping[str, Any]) -> dict[str, ExportOutput]:
        raise NotImplementedError

    def _prepare_labels(self, labels: Any) -> Any:
        raise NotImplementedError

    def _compute_losses(self, logits: Any, labels: Any) -> Any:
        """Return the loss of each example, with the shape [batch, 1] or that of the logits."""
        raise NotImplementedError

    def _make_metrics(
        self, labels: Any, predictions: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        raise NotImplementedError

    def _get_weights(self, features: Any) -> Any:
        column = self._weight_column
        if column is None:
            return 1.0
        key = column if isinstance(column, str) else column.key
        if key not in features:
            raise ValueError(
                f"there is no feature {key!r} for the weights: there are {[*features]}"
            )
        return _as_column(tf.cast(features[key], tf.float32))


class _ClassHead(Head):
    def __init__(
        self,
        n_classes: int,
        logits_dimension: int,
        weight_column: Any,
        label_vocabulary: Sequence[str] | None,
        loss_reduction: str,
        name: str | None,
    ) -> None:
        if label_vocabulary is not None and len(label_vocabulary) != n_classes:
            raise ValueError(
                f"label_vocabulary has {len(label_vocabulary)} entries for {n_classes} classes"
            )
        super().__init__(logits_dimension, weight_column, loss_reduction, name)
        self._n_classes = n_classes
        self._vocabulary = label_vocabulary

    def _prepare_labels(self, labels: Any) -> Any:
        if labels is None:
            raise ValueError("the input_fn returns no labels: return (features, labels)")
        labels = _as_column(labels)
        if labels.dtype == tf.string:
            if self._vocabulary is None:
                raise ValueError("the labels are strings: set label_vocabulary")
            keys = tf.constant(list(self._vocabulary))
            values = tf.range(self._n_classes, dtype=tf.int64)
            initializer = tf.lookup.KeyValueTensorInitializer(keys, values)
            labels = tf.lookup.StaticHashTable(initializer, -1).lookup(labels)
        labels = tf.cast(labels, tf.int64)
        are_known = tf.reduce_all((labels >= 0) & (labels < self._n_classes))
        expected = self._vocabulary or f"0 to {self._n_classes - 1}"
        message = f"a label is none of the classes {expected}: set n_classes, or label_vocabulary"
        # TensorFlow itself may train with such a label.
        with tf.control_dependencies([tf.Assert(are_known, [message, labels])]):
            return tf.identity(labels)

    def _name_classes(self, ids: Any) -> Any:
        if self._vocabulary is None:
            return tf.as_string(ids)
        return tf.gather(tf.constant(list(self._vocabulary)), ids)

    def _make_outputs(self, predictions: Mapping[str, Any]) -> dict[str, ExportOutput]:
        scores = predictions["probabilities"]
        names = self._name_classes(tf.range(self._n_classes))
        batch = tf.shape(scores)[0]
        every = tf.tile(tf.expand_dims(names, 0), [batch, 1])
        classification = ClassificationOutput(scores, every)
        return {
            "serving_default": classification,
            "classification": classification,
            "predict": PredictOutput(predictions),
        }


class MultiClassHead(_ClassHead):
    """The head of a classifier with more than two classes.

    Args:
        n_classes: The number of classes.
        weight_column: The feature that weights the examples.
        label_vocabulary: The names of the classes if the labels are strings.
        loss_reduction: How the losses of a batch are reduced.
        name: The name of the head.
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = _SUM,
        name: str | None = None,
    ) -> None:
        super().__init__(
            n_classes, n_classes, weight_column, label_vocabulary, loss_reduction, name
        )

    def _predict(self, logits: Any) -> dict[str, Any]:
        ids = tf.expand_dims(tf.argmax(logits, -1), -1)
        return {
            "logits": logits,
            "probabilities": tf.nn.softmax(logits),
            "class_ids": ids,
            "classes": self._name_classes(ids),
        }

    def _compute_losses(self, logits: Any, labels: Any) -> Any:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=tf.squeeze(labels, -1), logits=logits
        )
        return tf.expand_dims(losses, -1)

    def _make_metrics(
        self, labels: Any, predictions: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        return {"accuracy": tf.metrics.accuracy(labels, predictions["class_ids"], weights)}


class BinaryClassHead(_ClassHead):
    """The head of a classifier with two classes.

    Args:
        weight_column: The feature that weights the examples.
        thresholds: Not supported.
        label_vocabulary: The names of the classes if the labels are strings.
        loss_reduction: How the losses of a batch are reduced.
        name: The name of the head.
    """

    def __init__(
        self,
        weight_column: Any = None,
        thresholds: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = _SUM,
        name: str | None = None,
    ) -> None:
        if thresholds:
            raise ValueError("thresholds are not supported: leave them out")
        super().__init__(2, 1, weight_column, label_vocabulary, loss_reduction, name)

    def _predict(self, logits: Any) -> dict[str, Any]:
        both = tf.concat([tf.zeros_like(logits), logits], -1)
        ids = tf.expand_dims(tf.argmax(both, -1), -1)
        return {
            "logits": logits,
            "logistic": tf.sigmoid(logits),
            "probabilities": tf.nn.softmax(both),
            "class_ids": ids,
            "classes": self._name_classes(ids),
        }

    def _compute_losses(self, logits: Any, labels: Any) -> Any:
        return tf.nn.sigmoid_cross_entropy_with_logits(
            labels=tf.cast(labels, tf.float32), logits=logits
        )

    def _make_metrics(
        self, labels: Any, predictions: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        ids, logistic = predictions["class_ids"], predictions["logistic"]
        mean, update = tf.metrics.mean(labels, weights)
        baseline = tf.maximum(mean, 1 - mean), update
        return {
            "accuracy": tf.metrics.accuracy(labels, ids, weights),
            "accuracy_baseline": baseline,
            "precision": tf.metrics.precision(labels, ids, weights),
            "recall": tf.metrics.recall(labels, ids, weights),
            "auc": tf.metrics.auc(labels, logistic, weights),
            "auc_precision_recall": tf.metrics.auc(
                labels, logistic, weights, curve="PR", summation_method="careful_interpolation"
            ),
            "label/mean": tf.metrics.mean(labels, weights),
            "prediction/mean": tf.metrics.mean(logistic, weights),
        }


class RegressionHead(Head):
    """The head of a regression.

    Args:
        weight_column: The feature that weights the examples.
        label_dimension: The number of values of a label.
        loss_reduction: How the losses of a batch are reduced.
        name: The name of the head.
    """

    def __init__(
        self,
        weight_column: Any = None,
        label_dimension: int = 1,
        loss_reduction: str = _SUM,
        name: str | None = None,
    ) -> None:
        super().__init__(label_dimension, weight_column, loss_reduction, name)

    def _predict(self, logits: Any) -> dict[str, Any]:
        return {"predictions": logits}

    def _make_outputs(self, predictions: Mapping[str, Any]) -> dict[str, ExportOutput]:
        regression = RegressionOutput(predictions["predictions"])
        return {
            "serving_default": regression,
            "regression": regression,
            "predict": PredictOutput(predictions),
        }

    def _prepare_labels(self, labels: Any) -> Any:
        if labels is None:
            raise ValueError("the input_fn returns no labels: return (features, labels)")
        return _as_column(tf.cast(labels, tf.float32))

    def _compute_losses(self, logits: Any, labels: Any) -> Any:
        return tf.square(logits - labels)

    def _make_metrics(
        self, labels: Any, predictions: Mapping[str, Any], weights: Any
    ) -> dict[str, Any]:
        return {
            "label/mean": tf.metrics.mean(labels, weights),
            "prediction/mean": tf.metrics.mean(predictions["predictions"], weights),
        }


def _as_column(tensor: Any) -> Any:
    """Return [batch] as [batch, 1], and [batch, n] as it is."""
    if isinstance(tensor, tf.SparseTensor):
        tensor = tf.sparse_tensor_to_dense(tensor)
    return tf.expand_dims(tensor, -1) if tensor.shape.ndims == 1 else tensor


def make_class_head(
    n_classes: int,
    weight_column: Any,
    label_vocabulary: Sequence[str] | None,
    loss_reduction: str,
) -> Head:
    """Return the head of a classifier."""
    if n_classes < 2:
        raise ValueError(f"n_classes is {n_classes}: it must be at least 2")
    if n_classes == 2:
        return BinaryClassHead(weight_column, None, label_vocabulary, loss_reduction)
    return MultiClassHead(n_classes, weight_column, label_vocabulary, loss_reduction)
