"""Cases: data of every kind, the arguments of `fit`, losses and metrics, and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, optimizers
from tests.parity.layer_cases import SEEDS, compiled
from tests.parity.table import (
    BATCH,
    CLASSES,
    EPOCHS,
    EXAMPLES,
    FEATURES,
    INDICES,
    TARGETS,
    WEIGHTS,
    Fit,
    batches,
    case,
    perceptron,
    sequential,
)

Arguments = Callable[[], Mapping[str, Any]]


def arrays(**more: Any) -> Arguments:
    """Return the arguments of `fit` for arrays in their order."""
    given = {"x": FEATURES, "y": TARGETS, "batch_size": BATCH, "epochs": EPOCHS, "shuffle": False}
    return lambda: given | more


def regression() -> Any:
    return compiled(perceptron(), metrics=["mae"])


def classifier() -> Any:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return compiled(sequential(layers.Dense(3)), loss=loss, metrics=["accuracy"])


case("arrays", arguments=arrays(validation_data=(FEATURES, TARGETS)))(regression)
case("arrays with the default batch size", arguments=arrays(batch_size=None))(regression)
case("validation_split", arguments=arrays(validation_split=0.25))(regression)
case(
    "validation_split with sample_weight",
    arguments=arrays(validation_split=0.25, sample_weight=WEIGHTS),
)(regression)
case(
    "validation_data with weights", arguments=arrays(validation_data=(FEATURES, TARGETS, WEIGHTS))
)(regression)
case(
    "validation_batch_size and validation_steps",
    arguments=arrays(
        validation_data=(FEATURES, TARGETS), validation_batch_size=8, validation_steps=3
    ),
)(regression)
case(
    "validation_freq",
    arguments=arrays(validation_data=(FEATURES, TARGETS), validation_freq=2, epochs=4),
)(regression)
case(
    "validation_freq as a list",
    arguments=arrays(validation_data=(FEATURES, TARGETS), validation_freq=[1, 3], epochs=3),
)(regression)
case("initial_epoch", arguments=arrays(initial_epoch=1, epochs=3))(regression)
case("sample_weight", arguments=arrays(sample_weight=WEIGHTS))(regression)
case(
    "sample_weight with a last batch that is smaller",
    arguments=arrays(sample_weight=WEIGHTS, batch_size=24),
)(regression)
case("class_weight", arguments=arrays(y=CLASSES, class_weight={0: 1.0, 1: 3.0, 2: 0.5}))(classifier)
case(
    "class_weight with a dataset",
    arguments=lambda: {
        "x": batches(FEATURES, CLASSES)(),
        "class_weight": {0: 1.0, 1: 3.0, 2: 0.5},
        "epochs": EPOCHS,
    },
)(classifier)
case("shuffle after set_random_seed", arguments=arrays(shuffle=True))(regression)
case(
    "a shuffled dataset with a seed",
    lambda: (
        tf.data.Dataset.from_tensor_slices((FEATURES, TARGETS)).shuffle(64, seed=3).batch(BATCH)
    ),
    difference="The first epoch has the same order. Then Keras opens the dataset once without "
    "reading it, so that its second epoch has the order of the third here.",
    loss_tolerance=0.1,
)(regression)
case("a last batch of uneven parts", batches(FEATURES[:61], TARGETS[:61]))(regression)
case("a last batch of one example", batches(FEATURES[:49], TARGETS[:49]))(regression)
case("batches of one example", batches(FEATURES[:6], TARGETS[:6], size=1))(regression)
case(
    "steps_per_epoch of a dataset that repeats",
    arguments=lambda: {
        "x": batches(FEATURES, TARGETS)().repeat(),
        "steps_per_epoch": 3,
        "epochs": 3,
        "validation_data": batches(FEATURES, TARGETS)().repeat(),
        "validation_steps": 2,
    },
)(regression)
case(
    "steps_per_epoch and arrays",
    arguments=arrays(steps_per_epoch=2, epochs=2),
)(regression)


def generate() -> Iterator[Any]:
    for start in range(0, EXAMPLES, BATCH):
        yield FEATURES[start : start + BATCH], TARGETS[start : start + BATCH]


def generate_without_end() -> Iterator[Any]:
    while True:
        yield from generate()


case(
    "a generator",
    arguments=lambda: {"x": generate(), "steps_per_epoch": 4},
)(regression)
case(
    "a generator without end",
    arguments=lambda: {"x": generate_without_end(), "steps_per_epoch": 4, "epochs": EPOCHS},
)(regression)
case(
    "a validation generator without end",
    arguments=lambda: {
        **arrays()(),
        "epochs": 4,
        "validation_data": generate_without_end(),
        "validation_steps": 2,
    },
)(regression)


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return EXAMPLES // BATCH

    def __getitem__(self, index: int) -> Any:
        part = slice(index * BATCH, (index + 1) * BATCH)
        return FEATURES[part], TARGETS[part]


case(
    "a PyDataset",
    arguments=lambda: {"x": Batches(), "shuffle": False, "epochs": EPOCHS},
)(regression)
case(
    "tensors",
    arguments=lambda: {**arrays()(), "x": tf.constant(FEATURES), "y": tf.constant(TARGETS)},
)(regression)


@case("a dict of arrays", arguments=arrays(x={"p": FEATURES, "q": FEATURES[::-1]}))
def dict_of_arrays() -> Any:
    p, q = keras.Input((8,), name="p"), keras.Input((8,), name="q")
    return compiled(keras.Model({"p": p, "q": q}, layers.Dense(1)(layers.Concatenate()([p, q]))))


@case("a ragged input", lambda: _ragged(INDICES, TARGETS))
def ragged() -> Any:
    inputs = keras.Input((None,), dtype="int32", ragged=True)
    vectors = layers.Embedding(20, 4)(inputs)
    return compiled(keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(vectors))))


def _ragged(indices: Any, targets: Any) -> Any:
    lengths = 1 + indices[:, 0] % 4
    flat = np.concatenate([row[:length] for row, length in zip(indices, lengths, strict=True)])
    rows = tf.RaggedTensor.from_row_lengths(flat, lengths)
    return tf.data.Dataset.from_tensor_slices((rows, targets)).batch(BATCH)


@case("a sparse input", lambda: _sparse(FEATURES, TARGETS))
def sparse() -> Any:
    inputs = keras.Input((8,), sparse=True)
    return compiled(keras.Model(inputs, layers.Dense(1)(inputs)))


def _sparse(features: Any, targets: Any) -> Any:
    dense = tf.constant(np.where(features > 0, features, 0))
    return tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(dense), targets)).batch(BATCH)


@case("loss reduction sum_over_batch_size", batches(FEATURES, TARGETS, WEIGHTS))
def mean_reduction() -> Any:
    return compiled(perceptron(), loss=keras.losses.MeanAbsoluteError("sum_over_batch_size"))


AVERAGED = (
    "A loss is averaged over the replicas, weighted by their examples, as Keras does within "
    "tf.distribute: {}."
)


@case(
    "loss reduction sum",
    on_replicas=AVERAGED.format("of a sum, each replica has only its part"),
)
def sum_reduction() -> Any:
    return compiled(perceptron(), optimizers.SGD(0.005), keras.losses.MeanSquaredError("sum"))


@case(
    "loss reduction mean_with_sample_weight",
    batches(FEATURES, TARGETS, WEIGHTS),
    on_replicas=AVERAGED.format("not by the sums of the sample weights"),
    loss_tolerance=0.1,
)
def weighted_mean_reduction() -> Any:
    return compiled(perceptron(), loss=keras.losses.MeanSquaredError("mean_with_sample_weight"))


@case("auto_scale_loss=False")
def unscaled_loss() -> Any:
    return compiled(perceptron(), auto_scale_loss=False)


@case("losses and metrics by name", batches(FEATURES, {"a": TARGETS, "b": CLASSES}))
def named_losses() -> Any:
    inputs = keras.Input((8,))
    outputs = {"a": layers.Dense(1, name="a")(inputs), "b": layers.Dense(3, name="b")(inputs)}
    crossentropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return compiled(
        keras.Model(inputs, outputs),
        loss={"a": "mse", "b": crossentropy},
        loss_weights={"a": 2.0, "b": 0.5},
        metrics={"a": ["mae"], "b": ["accuracy"]},
    )


@case("a loss that is a function", batches(FEATURES, TARGETS, WEIGHTS))
def loss_function() -> Any:
    return compiled(
        perceptron(), loss=lambda y, p: keras.ops.mean(keras.ops.abs(y - p) ** 1.5, axis=-1)
    )


@case("metrics of regressions", batches(FEATURES, TARGETS, size=24))
def regression_metrics() -> Any:
    metrics = [
        keras.metrics.RootMeanSquaredError(),
        keras.metrics.R2Score(),
        keras.metrics.CosineSimilarity(),
        keras.metrics.MeanAbsolutePercentageError(),
    ]
    return compiled(sequential(layers.Dense(1)), metrics=metrics)


@case("metrics of classes", batches(FEATURES, np.eye(3, dtype="float32")[CLASSES], size=24))
def class_metrics() -> Any:
    metrics = [
        keras.metrics.F1Score(average="macro"),
        keras.metrics.OneHotMeanIoU(num_classes=3),
        keras.metrics.TopKCategoricalAccuracy(2),
        keras.metrics.Recall(),
        keras.metrics.KLDivergence(),
    ]
    model = sequential(layers.Dense(3, activation="softmax"))
    return compiled(model, loss="categorical_crossentropy", metrics=metrics)


@case("a function as a metric", batches(FEATURES, TARGETS, WEIGHTS))
def metric_function() -> Any:
    def largest(y_true: Any, y_pred: Any) -> Any:
        return keras.ops.max(keras.ops.abs(y_true - y_pred), axis=-1)

    return compiled(perceptron(), metrics=[largest], weighted_metrics=[largest])


def with_callback(make: Callable[[], Any], **more: Any) -> Arguments:
    validation = {"validation_data": (FEATURES, TARGETS)}
    return lambda: {**arrays(**validation, **more)(), "callbacks": [make()]}


case(
    "LearningRateScheduler",
    arguments=with_callback(
        lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5), epochs=3
    ),
)(regression)
case(
    "ReduceLROnPlateau",
    arguments=with_callback(
        lambda: keras.callbacks.ReduceLROnPlateau(patience=1, min_delta=10, factor=0.3), epochs=4
    ),
)(regression)
case(
    "EarlyStopping with restore_best_weights",
    arguments=with_callback(
        lambda: keras.callbacks.EarlyStopping(patience=1, min_delta=10, restore_best_weights=True),
        epochs=4,
    ),
)(regression)


class Shrink(keras.callbacks.Callback):  # type: ignore[misc]
    """Changes weights between two batches, and stops in an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        kernel = self.model.layers[0].kernel
        kernel.assign(kernel * 0.9)
        if batch == 2:
            self.model.stop_training = True


case("a callback that changes weights and stops", arguments=with_callback(Shrink))(regression)


@case("SwapEMAWeights", arguments=with_callback(keras.callbacks.SwapEMAWeights))
def swap_averages() -> Any:
    return compiled(perceptron(), optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8))


def fit_twice(fit: Fit, model: Any) -> list[Any]:
    return [fit(model, FEATURES, TARGETS, batch_size=BATCH, shuffle=False) for _ in range(2)]


@case("fit called twice", train=fit_twice)
def two_fits() -> Any:
    return compiled(perceptron(), optimizers.Adam(0.01), metrics=["mae"])


@case("Dropout and fit called twice", train=fit_twice, on_replicas=SEEDS, loss_tolerance=1.0)
def two_fits_with_dropout() -> Any:
    return compiled(sequential(layers.Dense(8), layers.Dropout(0.3), layers.Dense(1)))


def recompile(fit: Fit, model: Any) -> list[Any]:
    [first] = fit_twice(fit, model)[-1:]
    model.layers[0].trainable = False
    model.compile(optimizers.Adam(0.01), "mae", metrics=["mse"])
    return [first, *fit_twice(fit, model)]


@case("layers frozen and the model compiled again between fits", train=recompile)
def recompiled() -> Any:
    return compiled(perceptron())
