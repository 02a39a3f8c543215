"""Cases: layers, losses and metrics."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers, optimizers
from tests.parity.table import (
    BATCH,
    CLASSES,
    EPOCHS,
    FEATURES,
    IMAGES,
    ON_PS,
    REPLICATED,
    SEQUENCES,
    TARGETS,
    WEIGHTS,
    batches,
    case,
    perceptron,
    sequential,
)

BATCH_STATISTICS = (
    "Each replica normalizes its part of a batch by the mean and variance of that part; the moving "
    "averages are those of all parts."
)


@case("kernel_regularizer")
def kernel_regularizer() -> Any:
    model = perceptron(kernel_regularizer="l2")
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@case(
    "kernel_regularizer beside BatchNormalization",
    on_replicas=BATCH_STATISTICS,
    loss_tolerance=0.1,
)
def regularized_statistics() -> Any:
    model = sequential(
        layers.Dense(8, kernel_regularizer="l2"), layers.BatchNormalization(), layers.Dense(1)
    )
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


@case(
    "add_loss of a sum over the batch",
    on_replicas="What a layer adds to the loss is averaged over the replicas, as Keras does within "
    "tf.distribute: add means over the batch, not sums.",
)
def add_loss() -> Any:
    model = sequential(layers.Dense(4), AddLoss(), layers.Dense(1))
    model.compile(optimizers.SGD(0.01), "mse")
    return model


@case("kernel_constraint")
def kernel_constraint() -> Any:
    model = perceptron(kernel_constraint=keras.constraints.MaxNorm(0.5))
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@case("BatchNormalization", on_replicas=BATCH_STATISTICS, loss_tolerance=0.1)
def batch_normalization() -> Any:
    model = sequential(layers.Dense(16), layers.BatchNormalization(), layers.Dense(1))
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@case(
    "BatchNormalization with a last batch that is smaller",
    batches(FEATURES, TARGETS, size=24),
    on_replicas=BATCH_STATISTICS,
    loss_tolerance=0.1,
)
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


@case("convolutions", batches(IMAGES, TARGETS), on_replicas=BATCH_STATISTICS, loss_tolerance=0.1)
def convolutions() -> Any:
    # A bias before the normalization would have no gradient but rounding errors, which Adam scales.
    stack = [
        layers.Conv2D(4, 3, use_bias=False),
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


@case(
    "stateful recurrent layers",
    batches(SEQUENCES, TARGETS),
    arguments=lambda: {"x": batches(SEQUENCES, TARGETS)(), "epochs": EPOCHS},
    refused=dict.fromkeys(REPLICATED, "is stateful"),
    evaluation="Keras continues the last sequences of the training in the evaluation, and those of "
    "each batch in the next; Phalanx evaluates each batch after the training data, so that an "
    "evaluation changes nothing.",
)
def stateful_recurrent() -> Any:
    stack = [layers.GRU(4, stateful=True), layers.Dense(1)]
    model = keras.Sequential([keras.Input(batch_shape=(BATCH, 4, 2)), *stack])
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@keras.saving.register_keras_serializable(package="parity")
class CountLarge(keras.metrics.Metric):  # type: ignore[misc]
    """Counts the predictions above a half."""

    def __init__(self, name: str = "count_large", **options: Any) -> None:
        super().__init__(name=name, **options)
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(keras.ops.sum(keras.ops.cast(y_pred > 0.5, "float32")))

    def result(self) -> Any:
        # Keras would show the variable itself with its value after the validation.
        return self.total + 0.0


@case("a metric of the user that is a sum")
def own_metric() -> Any:
    model = perceptron()
    model.compile(optimizers.SGD(0.1), "mse", metrics=[CountLarge()])
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


@case("mixed_bfloat16", replica_tolerance=2e-3)
def mixed_bfloat16() -> Any:
    model = sequential(layers.Dense(8, dtype="mixed_bfloat16"), layers.Dense(1, dtype="float32"))
    model.compile(optimizers.SGD(0.1), "mse")
    return model


@case(
    "mixed_float16, whose optimizer scales the loss",
    refused=dict.fromkeys(ON_PS, "loss scale"),
    replica_tolerance=2e-4,
)
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
