"""The table of parity cases: features of Keras, each with a model, its data and its training.

Every case is trained by `model.fit` and, in every mode, by `phalanx.fit`, from the same initial
weights and on the same batches. The weights, the variables of the optimizer, the history and an
evaluation must be equal to the tolerance of the case, unless the case says how they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

TOLERANCE = 2e-5
BATCH = 16
EXAMPLES = 64
EPOCHS = 2

_random = np.random.default_rng(0)
FEATURES = _random.normal(size=(EXAMPLES, 8)).astype("float32")
TARGETS = (FEATURES.sum(axis=1, keepdims=True) > 0).astype("float32")
CLASSES = _random.integers(0, 3, size=EXAMPLES).astype("int32")
WEIGHTS = _random.uniform(0.5, 2, size=EXAMPLES).astype("float32")
INDICES = _random.integers(0, 20, size=(EXAMPLES, 4)).astype("int32")
IMAGES = _random.normal(size=(EXAMPLES, 8, 8, 3)).astype("float32")
SEQUENCES = FEATURES.reshape(EXAMPLES, 4, 2)
WORDS = np.array(["ant", "bee", "cat", "dog", "eel"])[_random.integers(0, 5, size=(EXAMPLES, 4))]


class Mode(StrEnum):
    """Where the cases are trained."""

    ONE_PROCESS = "one process"
    TWO_DEVICES = "two devices"
    ALL_REDUCE = "two workers by all-reduce"
    SYNC_PS = "synchronous on a ps"
    ASYNC_PS = "asynchronous on a ps with one trainer"


RULES = {
    Mode.ONE_PROCESS: "Every step computes what a step of Keras computes.",
    Mode.TWO_DEVICES: "Each device computes its part of every batch. The gradients are averaged, "
    "weighted by the number of examples, and applied once.",
    Mode.ALL_REDUCE: "As with several devices, over all devices of all workers.",
    Mode.SYNC_PS: "Each trainer computes its part of every batch. The parameter servers average "
    "the gradients, weighted by the number of examples, and apply them once.",
    Mode.ASYNC_PS: "Each trainer computes whole batches and applies its gradients at once. One "
    "trainer computes what Keras computes; with several, each gradient comes from weights that "
    "the others have changed meanwhile.",
}

REPLICATED = (Mode.TWO_DEVICES, Mode.ALL_REDUCE, Mode.SYNC_PS)
"""The modes in which two replicas share each batch."""
ON_PS = (Mode.SYNC_PS, Mode.ASYNC_PS)

Fit = Callable[..., Any]
"""Trains a model: `fit(model, x, y, **arguments)` returns the history."""
Train = Callable[[Fit, Any], list[Any]]
"""Trains a model with one or more calls of a `Fit`, and returns the histories."""


def batches(*arrays: Any, size: int = BATCH) -> Callable[[], Any]:
    """Return a function that makes a dataset in a fixed order."""
    return lambda: tf.data.Dataset.from_tensor_slices(arrays).batch(size)


@dataclass(frozen=True)
class Case:
    """A feature of Keras that training must reproduce.

    Attributes:
        name: What the test is called.
        make_model: Returns the compiled model.
        train: Trains it.
        evaluation_data: What the trained model is evaluated on: arguments for `evaluate`.
        differences: How the results differ on purpose, by mode.
        refused: A part of the error in the modes that cannot do this.
        evaluation: How only the evaluation differs on purpose.
        evaluates: Whether `evaluate` is compared, too, beside the validation in `fit`.
        tolerance: How far weights and variables of the optimizer may differ.
        replica_tolerance: The same where two replicas share each batch: half precision rounds.
        loss_tolerance: How far the loss may differ where there is a difference on purpose.
    """

    name: str
    make_model: Callable[[], Any]
    train: Train
    evaluation_data: Callable[[], Mapping[str, Any]]
    differences: Mapping[Mode, str] = field(default_factory=dict)
    refused: Mapping[Mode, str] = field(default_factory=dict)
    evaluation: str = ""
    evaluates: bool = False
    tolerance: float = TOLERANCE
    replica_tolerance: float = TOLERANCE
    loss_tolerance: float = 1e9


CASES: list[Case] = []

_NOTHING: Mapping[Mode, str] = MappingProxyType({})


def case(
    name: str,
    data: Callable[[], Any] | None = None,
    *,
    arguments: Callable[[], Mapping[str, Any]] | None = None,
    train: Train | None = None,
    evaluation_data: Callable[[], Mapping[str, Any]] | None = None,
    difference: str = "",
    on_replicas: str = "",
    differences: Mapping[Mode, str] = _NOTHING,
    refused: Mapping[Mode, str] = _NOTHING,
    table: list[Case] = CASES,
    **options: Any,
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Add a case to the table; the decorated function makes its model.

    Args:
        name: What the test is called.
        data: Makes a dataset, to train on and to evaluate.
        arguments: The arguments of `fit`, instead of `data`.
        train: Calls `fit` by itself, instead of `data` and `arguments`.
        evaluation_data: The arguments of `evaluate`; by default the dataset.
        difference: How the results differ in every mode.
        on_replicas: How they differ where two replicas share each batch.
        differences: How they differ, by mode.
        refused: By mode, a part of the error where this cannot be done.
        table: The table to add it to.
        options: Further attributes of `Case`.
    """
    make_data = data or batches(FEATURES, TARGETS)

    def train_once(fit: Fit, model: Any) -> list[Any]:
        given = {"x": make_data(), "validation_data": make_data(), "epochs": EPOCHS}
        return [fit(model, **(given if arguments is None else arguments()))]

    by_mode = dict(differences) | (dict.fromkeys(Mode, difference) if difference else {})
    if on_replicas:
        by_mode |= dict.fromkeys(REPLICATED, on_replicas)

    def add(make_model: Callable[[], Any]) -> Callable[[], Any]:
        table.append(
            Case(
                name,
                make_model,
                train or train_once,
                evaluation_data or (lambda: {"x": make_data()}),
                by_mode,
                refused,
                **options,
            )
        )
        return make_model

    return add


def sequential(*stack: Any, shape: tuple[int, ...] = (8,), dtype: str | None = None) -> Any:
    return keras.Sequential([keras.Input(shape, dtype=dtype), *stack])


def perceptron(**options: Any) -> Any:
    return sequential(layers.Dense(16, activation="relu", **options), layers.Dense(1, **options))
