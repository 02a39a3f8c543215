"""The canned estimators."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.estimator.canned import models
from phalanx.compat.tf1.estimator.canned.heads import Head, RegressionHead, make_class_head
from phalanx.compat.tf1.estimator.estimator import Estimator
from phalanx.compat.tf1.estimator.run_config import RunConfig
from phalanx.compat.tf1.estimator.specs import EstimatorSpec

_SUM = tf.losses.Reduction.SUM
_LINEAR_RATE = 0.2
_WIDE_RATE = 0.005


class LinearEstimator(Estimator):
    """A linear model with any head.

    Args:
        head: The head.
        feature_columns: The columns of `tf.feature_column`.
        model_dir: The directory of checkpoints and summaries.
        optimizer: The optimizer, its name, or a function that returns it.
        config: A `RunConfig`.
        partitioner: Not used: large tables are split over the parameter servers.
        sparse_combiner: How several values of a column are combined.
        warm_start_from: A checkpoint, or `WarmStartSettings`.
    """

    def __init__(
        self,
        head: Head,
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        sparse_combiner: str = "sum",
        warm_start_from: Any = None,
    ) -> None:
        columns = _check_columns(feature_columns)

        def model_fn(features: Any, labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
            logits = models.build_linear(
                features, columns, head.logits_dimension, config, sparse_combiner
            )
            rate = models.linear_rate(columns, _LINEAR_RATE)
            make = {"linear": lambda: models.make_optimizer(optimizer, rate)}
            return models.make_spec(head, features, labels, mode, logits, make)

        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNEstimator(Estimator):
    """A network of dense layers with any head.

    Args:
        head: The head.
        hidden_units: The sizes of the hidden layers.
        feature_columns: The dense columns of `tf.feature_column`.
        model_dir: The directory of checkpoints and summaries.
        optimizer: The optimizer, its name, or a function that returns it.
        activation_fn: The activation of the hidden layers.
        dropout: The part of the activations that is dropped in training.
        input_layer_partitioner: Not used: large tables are split over the parameter servers.
        config: A `RunConfig`.
        warm_start_from: A checkpoint, or `WarmStartSettings`.
        batch_norm: Whether to normalize after each hidden layer.
    """

    def __init__(
        self,
        head: Head,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Callable[[Any], Any] = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
    ) -> None:
        columns = _check_columns(feature_columns)

        def model_fn(features: Any, labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
            logits = models.build_dnn(
                features,
                columns,
                head.logits_dimension,
                config,
                mode,
                hidden_units=hidden_units,
                activation_fn=activation_fn,
                dropout=dropout,
                batch_norm=batch_norm,
            )
            make = {"dnn": lambda: models.make_optimizer(optimizer, models.DNN_RATE)}
            return models.make_spec(head, features, labels, mode, logits, make)

        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class DNNLinearCombinedEstimator(Estimator):
    """A linear model and a network whose logits are added: wide and deep, with any head.

    Args:
        head: The head.
        model_dir: The directory of checkpoints and summaries.
        linear_feature_columns: The columns of the linear model.
        linear_optimizer: The optimizer of the linear model.
        dnn_feature_columns: The dense columns of the network.
        dnn_optimizer: The optimizer of the network.
        dnn_hidden_units: The sizes of the hidden layers.
        dnn_activation_fn: The activation of the hidden layers.
        dnn_dropout: The part of the activations that is dropped in training.
        input_layer_partitioner: Not used: large tables are split over the parameter servers.
        config: A `RunConfig`.
        warm_start_from: A checkpoint, or `WarmStartSettings`.
        batch_norm: Whether to normalize after each hidden layer.
        linear_sparse_combiner: How several values of a linear column are combined.
    """

    def __init__(
        self,
        head: Head,
        model_dir: Any = None,
        linear_feature_columns: Sequence[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Sequence[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Callable[[Any], Any] = tf.nn.relu,
        dnn_dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        batch_norm: bool = False,
        linear_sparse_combiner: str = "sum",
    ) -> None:
        wide, deep = list(linear_feature_columns or ()), list(dnn_feature_columns or ())
        _check_columns([*wide, *deep])
        if bool(deep) != bool(dnn_hidden_units):
            raise ValueError("set both dnn_feature_columns and dnn_hidden_units, or neither")

        def model_fn(features: Any, labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
            units = head.logits_dimension
            logits = []
            if deep:
                logits.append(
                    models.build_dnn(
                        features,
                        deep,
                        units,
                        config,
                        mode,
                        hidden_units=dnn_hidden_units or (),
                        activation_fn=dnn_activation_fn,
                        dropout=dnn_dropout,
                        batch_norm=batch_norm,
                    )
                )
            if wide:
                logits.append(
                    models.build_linear(features, wide, units, config, linear_sparse_combiner)
                )
            rate = models.linear_rate(wide, _WIDE_RATE)
            make = {
                "dnn": lambda: models.make_optimizer(dnn_optimizer, models.DNN_RATE),
                "linear": lambda: models.make_optimizer(linear_optimizer, rate),
            }
            return models.make_spec(head, features, labels, mode, tf.add_n(logits), make)

        super().__init__(model_fn, model_dir, config, warm_start_from=warm_start_from)


class BaselineEstimator(Estimator):
    """Predicts the same for every example, with any head.

    Args:
        head: The head.
        model_dir: The directory of checkpoints and summaries.
        optimizer: The optimizer, its name, or a function that returns it.
        config: A `RunConfig`.
    """

    def __init__(
        self,
        head: Head,
        model_dir: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
    ) -> None:
        def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
            logits = models.build_baseline(features, head.logits_dimension)
            make = {"baseline": lambda: models.make_optimizer(optimizer, 0.3)}
            return models.make_spec(head, features, labels, mode, logits, make)

        super().__init__(model_fn, model_dir, config)


class LinearClassifier(LinearEstimator):
    """A linear model that classifies; see `LinearEstimator` and `MultiClassHead`."""

    def __init__(
        self,
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        head = make_class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(
            head,
            feature_columns,
            model_dir,
            optimizer,
            config,
            partitioner,
            sparse_combiner,
            warm_start_from,
        )


class LinearRegressor(LinearEstimator):
    """A linear model that predicts values; see `LinearEstimator` and `RegressionHead`."""

    def __init__(
        self,
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        partitioner: Any = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        sparse_combiner: str = "sum",
    ) -> None:
        super().__init__(
            RegressionHead(weight_column, label_dimension, loss_reduction),
            feature_columns,
            model_dir,
            optimizer,
            config,
            partitioner,
            sparse_combiner,
            warm_start_from,
        )


class DNNClassifier(DNNEstimator):
    """A network that classifies; see `DNNEstimator` and `MultiClassHead`."""

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Adagrad",
        activation_fn: Callable[[Any], Any] = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(
            make_class_head(n_classes, weight_column, label_vocabulary, loss_reduction),
            hidden_units,
            feature_columns,
            model_dir,
            optimizer,
            activation_fn,
            dropout,
            input_layer_partitioner,
            config,
            warm_start_from,
            batch_norm,
        )


class DNNRegressor(DNNEstimator):
    """A network that predicts values; see `DNNEstimator` and `RegressionHead`."""

    def __init__(
        self,
        hidden_units: Sequence[int],
        feature_columns: Sequence[Any],
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Adagrad",
        activation_fn: Callable[[Any], Any] = tf.nn.relu,
        dropout: float | None = None,
        input_layer_partitioner: Any = None,
        config: RunConfig | None = None,
        warm_start_from: Any = None,
        loss_reduction: str = _SUM,
        batch_norm: bool = False,
    ) -> None:
        super().__init__(
            RegressionHead(weight_column, label_dimension, loss_reduction),
            hidden_units,
            feature_columns,
            model_dir,
            optimizer,
            activation_fn,
            dropout,
            input_layer_partitioner,
            config,
            warm_start_from,
            batch_norm,
        )


class DNNLinearCombinedClassifier(DNNLinearCombinedEstimator):
    """A wide and deep classifier; see `DNNLinearCombinedEstimator` and `MultiClassHead`."""

    def __init__(
        self,
        model_dir: Any = None,
        linear_feature_columns: Sequence[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Sequence[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Callable[[Any], Any] = tf.nn.relu,
        dnn_dropout: float | None = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = _SUM,
        **settings: Any,
    ) -> None:
        super().__init__(
            make_class_head(n_classes, weight_column, label_vocabulary, loss_reduction),
            model_dir,
            linear_feature_columns,
            linear_optimizer,
            dnn_feature_columns,
            dnn_optimizer,
            dnn_hidden_units,
            dnn_activation_fn,
            dnn_dropout,
            **settings,
        )


class DNNLinearCombinedRegressor(DNNLinearCombinedEstimator):
    """A wide and deep regression; see `DNNLinearCombinedEstimator` and `RegressionHead`."""

    def __init__(
        self,
        model_dir: Any = None,
        linear_feature_columns: Sequence[Any] | None = None,
        linear_optimizer: Any = "Ftrl",
        dnn_feature_columns: Sequence[Any] | None = None,
        dnn_optimizer: Any = "Adagrad",
        dnn_hidden_units: Sequence[int] | None = None,
        dnn_activation_fn: Callable[[Any], Any] = tf.nn.relu,
        dnn_dropout: float | None = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        loss_reduction: str = _SUM,
        **settings: Any,
    ) -> None:
        super().__init__(
            RegressionHead(weight_column, label_dimension, loss_reduction),
            model_dir,
            linear_feature_columns,
            linear_optimizer,
            dnn_feature_columns,
            dnn_optimizer,
            dnn_hidden_units,
            dnn_activation_fn,
            dnn_dropout,
            **settings,
        )


class BaselineClassifier(BaselineEstimator):
    """Predicts the frequency of each class; see `BaselineEstimator` and `MultiClassHead`."""

    def __init__(
        self,
        model_dir: Any = None,
        n_classes: int = 2,
        weight_column: Any = None,
        label_vocabulary: Sequence[str] | None = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = _SUM,
    ) -> None:
        head = make_class_head(n_classes, weight_column, label_vocabulary, loss_reduction)
        super().__init__(head, model_dir, optimizer, config)


class BaselineRegressor(BaselineEstimator):
    """Predicts the mean of the labels; see `BaselineEstimator` and `RegressionHead`."""

    def __init__(
        self,
        model_dir: Any = None,
        label_dimension: int = 1,
        weight_column: Any = None,
        optimizer: Any = "Ftrl",
        config: RunConfig | None = None,
        loss_reduction: str = _SUM,
    ) -> None:
        head = RegressionHead(weight_column, label_dimension, loss_reduction)
        super().__init__(head, model_dir, optimizer, config)


def _check_columns(columns: Sequence[Any]) -> list[Any]:
    if not columns:
        raise ValueError("there are no feature columns: name the features of the model")
    return list(columns)
