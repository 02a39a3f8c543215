"""Cases: further layers, kinds of models, and preprocessing inside the model."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import layers, optimizers
from tests.parity.table import (
    CLASSES,
    FEATURES,
    IMAGES,
    INDICES,
    SEQUENCES,
    TARGETS,
    WORDS,
    Mode,
    batches,
    case,
    perceptron,
    sequential,
)

import phalanx

SEEDS = (
    "The first replica draws the random numbers that Keras would draw for the whole batch; each "
    "other replica draws its own."
)


def compiled(model: Any, optimizer: Any = None, loss: Any = "mse", **options: Any) -> Any:
    model.compile(optimizer or optimizers.SGD(0.1), loss, **options)
    return model


@case("Dropout", on_replicas=SEEDS, loss_tolerance=0.3)
def dropout() -> Any:
    return compiled(sequential(layers.Dense(16), layers.Dropout(0.3), layers.Dense(1)))


# The loss that Keras finds lies between 1.4 and 2.8, depending on the seeds alone.
@case("GaussianNoise and two Dropout layers", on_replicas=SEEDS, loss_tolerance=1.5)
def noise() -> Any:
    stack = [layers.GaussianNoise(0.2), layers.Dense(8), layers.Dropout(0.2, seed=3)]
    return compiled(sequential(*stack, layers.Dropout(0.1), layers.Dense(1)))


@case("augmentation layers", batches(IMAGES, TARGETS), on_replicas=SEEDS, loss_tolerance=0.3)
def augmentation() -> Any:
    stack = [
        layers.RandomFlip("horizontal"),
        layers.RandomTranslation(0.2, 0.2),
        layers.Conv2D(4, 3),
        layers.GlobalAveragePooling2D(),
        layers.Dense(1),
    ]
    return compiled(sequential(*stack, shape=(8, 8, 3)))


@keras.saving.register_keras_serializable(package="parity")
class Unseeded(layers.Layer):  # type: ignore[misc]
    """Adds noise with the random generator that all of Keras shares."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        if not training:
            return inputs
        return inputs + 0.1 * keras.random.normal(keras.ops.shape(inputs))


@case(
    "keras.random without a seed",
    difference="Such a function draws numbers of the seed that all of Keras shares; each step and "
    "replica draws its own, but not those that Keras would draw.",
    loss_tolerance=0.3,
)
def unseeded() -> Any:
    return compiled(sequential(Unseeded(), layers.Dense(1)))


@case("LayerNormalization and GroupNormalization")
def normalizations() -> Any:
    stack = [layers.Dense(8), layers.LayerNormalization(), layers.GroupNormalization(2)]
    return compiled(sequential(*stack, layers.Dense(1)))


@case("UnitNormalization and RMSNormalization")
def more_normalizations() -> Any:
    stack = [layers.Dense(8), layers.RMSNormalization(), layers.UnitNormalization()]
    return compiled(sequential(*stack, layers.Dense(1)))


@case(
    "SpectralNormalization",
    refused=dict.fromkeys(Mode, "assigns its trainable weight"),
)
def spectral_normalization() -> Any:
    return compiled(sequential(layers.SpectralNormalization(layers.Dense(8)), layers.Dense(1)))


@case("MultiHeadAttention", batches(SEQUENCES, TARGETS), tolerance=1e-4)
def attention() -> Any:
    inputs = keras.Input((4, 2))
    attended = layers.MultiHeadAttention(2, 4)(inputs, inputs)
    output = layers.Dense(1)(layers.GlobalAveragePooling1D()(attended))
    return compiled(keras.Model(inputs, output), optimizers.Adam(0.01))


@case("LSTM and bidirectional layers", batches(SEQUENCES, TARGETS))
def bidirectional() -> Any:
    stack = [layers.Bidirectional(layers.LSTM(3, return_sequences=True)), layers.LSTM(3)]
    return compiled(sequential(*stack, layers.Dense(1), shape=(4, 2)))


@case("a layer that is shared by two inputs", batches((FEATURES, FEATURES[::-1]), TARGETS))
def shared_layer() -> Any:
    a, b = keras.Input((8,)), keras.Input((8,))
    dense = layers.Dense(4)
    return compiled(keras.Model([a, b], layers.Dense(1)(layers.Subtract()([dense(a), dense(b)]))))


@case("a model within a model")
def nested() -> Any:
    inner = sequential(layers.Dense(4, activation="relu"), layers.Dense(3))
    return compiled(sequential(inner, layers.Dense(1)))


@keras.saving.register_keras_serializable(package="parity")
class TwoBranches(keras.Model):  # type: ignore[misc]
    """A subclassed model, whose layers are built by its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = layers.Dense(4, activation="relu"), layers.Dense(4)
        self.head = layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.head(self.left(inputs) * self.right(inputs))


@case("a subclassed model that is not built")
def subclassed() -> Any:
    return compiled(TwoBranches())


@case("weight constraints of several kinds")
def constraints() -> Any:
    stack = [
        layers.Dense(8, kernel_constraint="non_neg", bias_constraint="unit_norm"),
        layers.Dense(1, kernel_constraint=keras.constraints.MinMaxNorm(0.1, 0.4)),
    ]
    return compiled(sequential(*stack))


@case("frozen layers between trainable ones")
def partly_frozen() -> Any:
    model = sequential(layers.Dense(8), layers.Dense(8), layers.Dense(1))
    model.layers[1].trainable = False
    return compiled(model, optimizers.Adam(0.01))


@case("BatchNormalization that is frozen")
def frozen_statistics() -> Any:
    model = sequential(layers.Dense(8), layers.BatchNormalization(), layers.Dense(1))
    model.layers[1].trainable = False
    return compiled(model)


@case("StringLookup in the model", batches(WORDS, TARGETS))
def string_lookup() -> Any:
    stack = [
        layers.StringLookup(vocabulary=["ant", "bee", "cat", "dog"]),
        layers.Embedding(5, 3),
        layers.Flatten(),
        layers.Dense(1),
    ]
    return compiled(sequential(*stack, shape=(4,), dtype="string"))


@case("StringLookup that was adapted", batches(WORDS, TARGETS))
def adapted_lookup() -> Any:
    lookup = layers.StringLookup(output_mode="multi_hot")
    lookup.adapt(WORDS)
    return compiled(sequential(lookup, layers.Dense(1), shape=(4,), dtype="string"))


@case("IntegerLookup, Hashing and CategoryEncoding", batches(INDICES, TARGETS))
def integer_lookup() -> Any:
    inputs = keras.Input((4,), dtype="int32")
    known = layers.IntegerLookup(vocabulary=list(range(10)), output_mode="multi_hot")(inputs)
    hashed = layers.Hashing(6)(inputs)
    coded = layers.CategoryEncoding(6, output_mode="count")(hashed)
    known = layers.Lambda(lambda value: keras.ops.cast(value, "float32"))(known)
    return compiled(keras.Model(inputs, layers.Dense(1)(layers.Concatenate()([known, coded]))))


SENTENCES = np.array([" ".join(words) for words in WORDS])


@case("TextVectorization in the model", batches(SENTENCES, TARGETS))
def text() -> Any:
    vectorize = layers.TextVectorization(output_sequence_length=5)
    vectorize.adapt(SENTENCES)
    stack = [layers.Embedding(8, 3, mask_zero=True), layers.GlobalAveragePooling1D()]
    return compiled(
        keras.Sequential([keras.Input((), dtype="string"), vectorize, *stack, layers.Dense(1)])
    )


@case("Normalization and Discretization that were adapted")
def adapted_numbers() -> Any:
    normalize, discretize = layers.Normalization(), layers.Discretization(num_bins=4)
    normalize.adapt(FEATURES)
    discretize.adapt(FEATURES)
    inputs = keras.Input((8,))
    bins = layers.Rescaling(0.1)(
        layers.CategoryEncoding(4, output_mode="count")(discretize(inputs))
    )
    joined = layers.Concatenate()([normalize(inputs), bins])
    return compiled(keras.Model(inputs, layers.Dense(1)(joined)))


@case("phalanx.layers.Embedding with SGD", batches(INDICES, TARGETS))
def table() -> Any:
    stack = [phalanx.layers.Embedding(20, 4), layers.Flatten(), layers.Dense(1)]
    return compiled(sequential(*stack, shape=(4,), dtype="int32"))


@case("masking of time steps", batches(SEQUENCES * (INDICES > 8)[..., None], TARGETS))
def masking() -> Any:
    return compiled(sequential(layers.Masking(), layers.GRU(4), layers.Dense(1), shape=(4, 2)))


@case(
    "a loss with a mask",
    batches(INDICES * (INDICES > 8), TARGETS[:, None] * np.ones((1, 4, 1), "float32")),
    on_replicas="Each replica averages the loss over its time steps that are not masked; replicas "
    "are weighted by their examples.",
    loss_tolerance=0.1,
)
def masked_loss() -> Any:
    stack = [layers.Embedding(20, 4, mask_zero=True), layers.Dense(1)]
    return compiled(sequential(*stack, shape=(4,), dtype="int32"))


@case("jit_compile")
def jit_compile() -> Any:
    return compiled(perceptron(), jit_compile=True)


@case("classes with categorical_crossentropy", batches(FEATURES, np.eye(3)[CLASSES]))
def categorical() -> Any:
    model = sequential(layers.Dense(3, activation="softmax"))
    loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    return compiled(model, loss=loss, metrics=["accuracy", "top_k_categorical_accuracy"])
