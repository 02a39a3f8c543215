"""Cases: methods that models override, limits, and what seldom happens."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import layers, optimizers
from tests.parity.table import (
    EPOCHS,
    FEATURES,
    TARGETS,
    Mode,
    batches,
    case,
    perceptron,
    sequential,
)


@case(
    "several outputs and batches of uneven parts",
    batches(FEATURES[:60], (TARGETS[:60], TARGETS[:60]), size=15),
)
def uneven_outputs() -> Any:
    inputs = keras.Input((8,))
    outputs = [layers.Dense(1, name="a")(inputs), layers.Dense(1, name="b")(inputs)]
    model = keras.Model(inputs, outputs)
    model.compile(optimizers.SGD(0.1), ["mse", "mae"], loss_weights=[1.0, 0.3])
    return model


@case(
    "several outputs and a last batch that is smaller",
    batches(FEATURES[:50], (TARGETS[:50], TARGETS[:50])),
    on_replicas="The loss of each output is averaged over the examples of an epoch, as the total "
    "loss is. In the losses of outputs, Keras gives the last batch the weight of a whole one.",
    loss_tolerance=1e-4,
)
def smaller_outputs() -> Any:
    return uneven_outputs()


@case("a metric that stays zero")
def zero_metric() -> Any:
    model = sequential(layers.Dense(1, activation="sigmoid"))
    never = keras.metrics.TruePositives(thresholds=0.99999)
    model.compile(optimizers.SGD(0.01), "binary_crossentropy", metrics=[never])
    return model


class Halved(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None
    ) -> Any:
        return keras.ops.mean((y - y_pred) ** 2) / 2


@case("compute_loss without the argument training")
def halved() -> Any:
    model = Halved()
    model.compile(optimizers.SGD(0.05))
    return model


class Described(keras.Sequential):  # type: ignore[misc]
    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        return results | {"mean_prediction": keras.ops.mean(y_pred)}


@case(
    "compute_metrics of the model's own",
    difference="A value that compute_metrics returns is averaged over the examples of an epoch; "
    "Keras shows that of the last batch.",
    loss_tolerance=1e-4,
)
def described() -> Any:
    model = Described([keras.Input((8,)), layers.Dense(1)])
    model.compile(optimizers.SGD(0.05), "mse", metrics=["mae"])
    return model


class Untracked(keras.Sequential):  # type: ignore[misc]
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@case(
    "a train_step that returns its loss without a metric",
    difference="A number that a step returns is averaged over the examples of an epoch. Keras "
    "shows the metric of the same name instead, which is 0 because the step has not updated it.",
    loss_tolerance=1.5,
)
def untracked() -> Any:
    model = Untracked([keras.Input((8,)), layers.Dense(1)])
    model.compile(optimizers.SGD(0.05), "mse")
    return model


@case(
    "Ftrl and weights without a gradient",
    refused=dict.fromkeys(Mode, "set trainable = False"),
)
def ftrl_unused() -> Any:
    inputs = keras.Input((8,))
    model = keras.Model(
        inputs,
        [layers.Dense(1)(inputs), layers.Dense(3, name="unused", bias_initializer="ones")(inputs)],
    )
    model.compile(optimizers.Ftrl(0.1), ["mse", None])
    return model


class StopSecond(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.stop_training = True


@case(
    "stop_training at the start of an epoch",
    arguments=lambda: {
        "x": batches(FEATURES, TARGETS, size=4)(),
        "epochs": EPOCHS,
        "callbacks": [StopSecond()],
    },
)
def stopped_epoch() -> Any:
    model = perceptron()
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@case("clipnorm of zero")
def no_clipping() -> Any:
    model = perceptron()
    model.compile(optimizers.SGD(0.1, clipnorm=0.0), "mse")
    return model


@case("a loss without a reduction", refused=dict.fromkeys(Mode, "has the shape"))
def unreduced() -> Any:
    model = perceptron()
    model.compile(optimizers.SGD(0.1), keras.losses.MeanSquaredError(reduction=None))
    return model


class Noise(layers.Layer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(5)

    def call(self, x: Any) -> Any:
        return x + keras.random.normal(keras.ops.shape(x), seed=self.seed)


@case(
    "random numbers in an evaluation",
    difference="An evaluation draws the same random numbers for every batch, and leaves the "
    "generators as they are. In Keras they go on, so that training then draws other numbers.",
    loss_tolerance=2.0,
)
def noise() -> Any:
    model = sequential(Noise(), layers.Dense(1))
    model.compile(optimizers.SGD(0.01), "mse")
    return model
