"""Metrics must be sums; others are refused by name."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.parity.model_cases import CountLarge

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.step.metric_sums import is_sum, needs_check
from phalanx.train.step.step_function import StepFunction

SPEC = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1]))
ONE_HOT = np.eye(3, dtype="float32")[[0, 1, 2, 1]]
CLASSES = np.array([0, 1, 2, 1])
PROBABILITIES = np.full((4, 3), 1 / 3, "float32")
REQUIRED = {
    "num_classes": 3, "sensitivity": 0.5, "specificity": 0.5, "precision": 0.5, "recall": 0.5,
    "target_class_ids": [0], "fn": lambda y_true, y_pred: keras.ops.mean(y_true - y_pred, -1),
}  # fmt: skip
KERAS: dict[str, Any] = {
    name: kind
    for name, kind in vars(keras.metrics).items()
    if inspect.isclass(kind) and issubclass(kind, keras.metrics.Metric) and name != "Metric"
}


@pytest.mark.parametrize("name", sorted(KERAS))
def test_metrics_of_keras_are_sums(name: str) -> None:
    parameters = inspect.signature(KERAS[name]).parameters
    metric = KERAS[name](**{key: value for key, value in REQUIRED.items() if key in parameters})
    batch: tuple[Any, ...] = (ONE_HOT, PROBABILITIES)
    if name in ("Mean", "Sum"):
        batch = (PROBABILITIES,)
    elif name in ("IoU", "MeanIoU", "BinaryIoU"):
        batch = (CLASSES % 2, CLASSES % 2)
    elif "Sparse" in name:
        batch = (CLASSES, PROBABILITIES)
    metric.update_state(*batch)
    metric.reset_state()
    assert not needs_check(metric)
    assert not any(np.any(variable.numpy()) for variable in metric.variables)
    sums: list[bool] = []

    @tf.function  # type: ignore[untyped-decorator]
    def trace() -> None:
        mapping = [(variable, tf.identity(variable.value)) for variable in metric.variables]
        with keras.StatelessScope(mapping) as scope:
            metric.update_state(*batch)
        sums.extend(is_sum(scope.get_current_value(v), old) for v, old in mapping)

    trace.get_concrete_function()
    assert sums
    assert all(sums)


class Largest(CountLarge):
    """The largest prediction so far."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign(keras.ops.maximum(self.total, keras.ops.max(y_pred)))


class Decayed(CountLarge):
    """A moving average of the predictions."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign(0.9 * self.total + 0.1 * keras.ops.mean(y_pred))


class FromOne(CountLarge):
    """A count that does not begin with zero."""

    def reset_state(self) -> None:
        self.total.assign(1.0)


class Masked(CountLarge):
    """A sum over some batches."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        total = self.total.value
        is_positive = keras.ops.sum(y_true) > 0
        self.total.assign(keras.ops.where(is_positive, total + 2.0 - keras.ops.sum(y_pred), total))


def build(metric: Any, compiled: bool, train: bool) -> None:
    def make_model() -> Any:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[metric] if compiled else None)
        return model

    experiment = phalanx.Experiment(model=make_model, metrics=[] if compiled else [metric])
    StepFunction(experiment, phalanx.Context()).build(SPEC if train else None, SPEC)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "of the experiment"])
@pytest.mark.parametrize("train", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("kind", [Largest, Decayed, FromOne])
def test_metric_that_is_no_sum_is_refused_by_name(kind: Any, compiled: bool, train: bool) -> None:
    with pytest.raises(ConfigurationError, match=rf"metric mine \({kind.__name__}\) is not a sum"):
        build(kind(name="mine"), compiled, train)


@pytest.mark.parametrize("kind", [CountLarge, Masked])
def test_metric_of_the_user_that_only_adds_is_accepted(kind: Any) -> None:
    build(kind(), compiled=True, train=True)
    build(kind(), compiled=False, train=True)
