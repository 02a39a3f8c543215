"""One table of features: a compiled Keras model each, and the data it is trained on.

Every case is trained by `model.fit` and by Phalanx from the same initial weights on the same
batches. The results must be equal to `TOLERANCE`, unless the case says how they differ on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, optimizers

TOLERANCE = 2e-5
BATCH = 16
EXAMPLES = 64

_random = np.random.default_rng(0)
FEATURES = _random.normal(size=(EXAMPLES, 8)).astype("float32")
TARGETS = (FEATURES.sum(axis=1, keepdims=True) > 0).astype("float32")
CLASSES = _random.integers(0, 3, size=EXAMPLES).astype("int32")
WEIGHTS = _random.uniform(0.5, 2, size=EXAMPLES).astype("float32")
INDICES = _random.integers(0, 20, size=(EXAMPLES, 4)).astype("int32")
IMAGES = _random.normal(size=(EXAMPLES, 8, 8, 3)).astype("float32")
SEQUENCES = FEATURES.reshape(EXAMPLES, 4, 2)


@dataclass(frozen=True)
class Case:
    """A feature of Keras that training must reproduce.

    Attributes:
        name: What the test is called.
        make_model: Returns the compiled model.
        make_data: Returns the batches, in a fixed order.
        difference: How Phalanx differs from Keras on purpose. Empty: it must not differ.
    """

    name: str
    make_model: Callable[[], Any]
    make_data: Callable[[], Any]
    difference: str = ""


CASES: list[Case] = []


def batches(*arrays: Any, size: int = BATCH) -> Callable[[], Any]:
    return lambda: tf.data.Dataset.from_tensor_slices(arrays).batch(size)


def case(
    name: str, data: Callable[[], Any] | None = None, difference: str = ""
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Add a case to the table; the decorated function makes its model."""

    def add(make_model: Callable[[], Any]) -> Callable[[], Any]:
        CASES.append(Case(name, make_model, data or batches(FEATURES, TARGETS), difference))
        return make_model

    return add


def sequential(*stack: Any) -> Any:
    return keras.Sequential([keras.Input((8,)), *stack])


def perceptron(**options: Any) -> Any:
    return sequential(layers.Dense(16, activation="relu", **options), layers.Dense(1, **options))


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: optimizers.SGD(0.05),
    "SGD with momentum": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "SGD with weight decay": lambda: optimizers.SGD(0.1, weight_decay=0.1),
    "SGD with a schedule": lambda: optimizers.SGD(
        optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    ),
    "Adam": lambda: optimizers.Adam(0.01),
    "Adam with amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "AdamW": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "Adamax": lambda: optimizers.Adamax(0.01),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "Adagrad": lambda: optimizers.Adagrad(0.01),
    "Adadelta": lambda: optimizers.Adadelta(0.5),
    "RMSprop": lambda: optimizers.RMSprop(0.01, momentum=0.9, centered=True),
    "Ftrl": lambda: optimizers.Ftrl(0.05),
    "Lion": lambda: optimizers.Lion(0.01),
    "Lamb": lambda: optimizers.Lamb(0.01),
    "Adafactor": lambda: optimizers.Adafactor(0.01),
    "Muon": lambda: optimizers.Muon(0.01),
    "Muon with excluded layers": lambda: optimizers.Muon(0.01, exclude_layers=["dense_1"]),
    "clipnorm": lambda: optimizers.SGD(0.1, clipnorm=0.1),
    "clipvalue": lambda: optimizers.SGD(0.1, clipvalue=0.05),
    "global_clipnorm": lambda: optimizers.SGD(0.1, global_clipnorm=0.1),
    "use_ema": lambda: optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8),
    "use_ema with overwriting": lambda: optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
    "use_ema with Adam": lambda: optimizers.Adam(0.01, use_ema=True, ema_momentum=0.8),
    "gradient_accumulation_steps": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "loss_scale_factor": lambda: optimizers.SGD(0.1, loss_scale_factor=64.0),
    "loss_scale_factor with clipping": lambda: optimizers.SGD(
        0.1, loss_scale_factor=64.0, clipnorm=0.1
    ),
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1), initial_scale=8.0
    ),
    "LossScaleOptimizer with clipping": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1, clipnorm=0.1), initial_scale=8.0
    ),
}


def _add_optimizer(name: str, make: Callable[[], Any]) -> None:
    @case(name)
    def make_model() -> Any:
        model = perceptron()
        model.compile(make(), "mse", metrics=["mae"])
        return model


for _name, _make in OPTIMIZERS.items():
    _add_optimizer(_name, _make)


@case("exclude_from_weight_decay by the variable's name")
def exclude_biases() -> Any:
    model, optimizer = perceptron(), optimizers.AdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.compile(optimizer, "mse")
    return model


@case("exclude_from_weight_decay by the layer's name")
def exclude_layer() -> Any:
    model = sequential(
        layers.Dense(16), layers.LayerNormalization(name="layer_norm"), layers.Dense(1)
    )
    optimizer = optimizers.AdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["layer_norm"])
    model.compile(optimizer, "mse")
    return model


@case("exclude_from_weight_decay inside a LossScaleOptimizer")
def exclude_with_loss_scale() -> Any:
    model, inner = perceptron(), optimizers.AdamW(0.01, weight_decay=0.5)
    inner.exclude_from_weight_decay(var_names=["bias"])
    model.compile(optimizers.LossScaleOptimizer(inner, initial_scale=8.0), "mse")
    return model


@case("weights without a gradient are not decayed")
def disconnected() -> Any:
    inputs = keras.Input((8,))
    output = layers.Dense(1)(layers.Dense(4)(inputs))
    unused = layers.Dense(3, name="unused")(inputs)
    model = keras.Model(inputs, [output, unused])
    model.compile(optimizers.AdamW(0.01, weight_decay=0.5), ["mse", None])
    return model


@case("kernel_regularizer")
def kernel_regularizer() -> Any:
    model = perceptron(kernel_regularizer="l2")
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@case("activity_regularizer")
def activity_regularizer() -> Any:
    model = perceptron(activity_regularizer=keras.regularizers.L2(0.1))
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@keras.saving.register_keras_serializable(package="parity")
class AddLoss(layers.Layer):  # type: ignore[misc]
    def call(self, inputs: Any) -> Any:
        self.add_loss(0.1 * keras.ops.sum(inputs * inputs))
        return inputs


@case("add_loss")
def add_loss() -> Any:
    model = sequential(layers.Dense(4), AddLoss(), layers.Dense(1))
    model.compile(optimizers.SGD(0.01), "mse")
    return model


@case("kernel_constraint")
def kernel_constraint() -> Any:
    model = perceptron(kernel_constraint=keras.constraints.MaxNorm(0.5))
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@case("BatchNormalization")
def batch_normalization() -> Any:
    model = sequential(layers.Dense(16), layers.BatchNormalization(), layers.Dense(1))
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@case("a last batch that is smaller", batches(FEATURES, TARGETS, size=24))
def partial_batch() -> Any:
    model = sequential(layers.Dense(4), layers.BatchNormalization(), layers.Dense(1))
    model.compile(optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


@case("frozen layers")
def frozen() -> Any:
    model = perceptron()
    model.layers[0].trainable = False
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@case("sample weights and weighted metrics", batches(FEATURES, TARGETS, WEIGHTS))
def sample_weights() -> Any:
    model = perceptron()
    model.compile(optimizers.SGD(0.1), "mse", metrics=["mae"], weighted_metrics=["mae"])
    return model


@case("several outputs with loss_weights", batches(FEATURES, (TARGETS, TARGETS)))
def loss_weights() -> Any:
    inputs = keras.Input((8,))
    hidden = layers.Dense(8)(inputs)
    outputs = [layers.Dense(1, name="a")(hidden), layers.Dense(1, name="b")(hidden)]
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizers.SGD(0.1), ["mse", "mae"], loss_weights=[1.0, 0.3], metrics=[["mae"], ["mse"]]
    )
    return model


@case("inputs and outputs by name", batches({"p": FEATURES, "q": FEATURES}, {"a": TARGETS}))
def named() -> Any:
    p, q = keras.Input((8,), name="p"), keras.Input((8,), name="q")
    output = layers.Dense(1, name="a")(layers.Concatenate()([p, q]))
    model = keras.Model({"p": p, "q": q}, {"a": output})
    model.compile(optimizers.SGD(0.1), {"a": "mse"})
    return model


@case("sparse_categorical_crossentropy and accuracies", batches(FEATURES, CLASSES))
def classifier() -> Any:
    model = sequential(layers.Dense(3))
    model.compile(
        optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
    )
    return model


@case("AUC, precision and binary accuracy")
def binary_metrics() -> Any:
    model = sequential(layers.Dense(1, activation="sigmoid"))
    metrics = [keras.metrics.AUC(), keras.metrics.Precision(), "accuracy"]
    model.compile(optimizers.SGD(0.1), "binary_crossentropy", metrics=metrics)
    return model


@case("keras.layers.Embedding with SGD", batches(INDICES, TARGETS))
def embedding() -> Any:
    stack = [layers.Embedding(20, 4), layers.Flatten(), layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,), dtype="int32"), *stack])
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@case(
    "keras.layers.Embedding with Adam",
    batches(INDICES, TARGETS),
    difference="Keras squares the gradient of each occurrence of a row; Phalanx sums the "
    "occurrences first, as the gradient of the row is their sum.",
)
def embedding_with_adam() -> Any:
    stack = [layers.Embedding(20, 4), layers.Flatten(), layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,), dtype="int32"), *stack])
    model.compile(optimizers.Adam(0.1), "mse")
    return model


@case("convolutions", batches(IMAGES, TARGETS))
def convolutions() -> Any:
    stack = [
        layers.Conv2D(4, 3),
        layers.BatchNormalization(),
        layers.ReLU(),
        layers.GlobalAveragePooling2D(),
        layers.Dense(1),
    ]
    model = keras.Sequential([keras.Input((8, 8, 3)), *stack])
    model.compile(optimizers.Adam(0.01), "mse")
    return model


@case("recurrent layers", batches(SEQUENCES, TARGETS))
def recurrent() -> Any:
    model = keras.Sequential([keras.Input((4, 2)), layers.GRU(4), layers.Dense(1)])
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@keras.saving.register_keras_serializable(package="parity")
class Regression(keras.Model):  # type: ignore[misc]
    """A model whose loss is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        return 2 * keras.ops.mean((y - y_pred) ** 2)


@case("compute_loss of the model's own")
def compute_loss() -> Any:
    model = Regression()
    model.compile(optimizers.SGD(0.05))
    return model


@case("steps_per_execution")
def steps_per_execution() -> Any:
    model = perceptron()
    model.compile(optimizers.SGD(0.1), "mse", steps_per_execution=2)
    return model


@case("mixed_bfloat16")
def mixed_bfloat16() -> Any:
    model = sequential(layers.Dense(8, dtype="mixed_bfloat16"), layers.Dense(1, dtype="float32"))
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@case("mixed_float16, whose optimizer scales the loss")
def mixed_float16() -> Any:
    model = sequential(layers.Dense(8, dtype="mixed_float16"), layers.Dense(1, dtype="float32"))
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@keras.saving.register_keras_serializable(package="parity")
class Counter(layers.Layer):  # type: ignore[misc]
    """Counts its calls in training, and notes that there was one."""

    def build(self, input_shape: Any) -> None:
        self.count = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="count"
        )
        self.called = self.add_weight(
            shape=(), dtype="bool", initializer="zeros", trainable=False, name="called"
        )

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.count.assign(self.count + 1)
            self.called.assign(True)
        return inputs


@case("integer and boolean state")
def integer_state() -> Any:
    model = sequential(Counter(), layers.Dense(1))
    model.compile(optimizers.SGD(0.1), "mse")
    return model
