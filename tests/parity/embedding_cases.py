"""Cases: `keras.layers.Embedding`, whose gradient has an entry for each lookup of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops, optimizers
from tests.parity.table import INDICES, ON_PS, TARGETS, batches, case, sequential

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: optimizers.SGD(0.1),
    "Adam": lambda: optimizers.Adam(0.1),
    "AdamW and clipnorm": lambda: optimizers.AdamW(0.1, clipnorm=0.1),
    "Adagrad and clipvalue": lambda: optimizers.Adagrad(0.1, clipvalue=0.01),
    "RMSprop and global_clipnorm": lambda: optimizers.RMSprop(0.1, global_clipnorm=0.1),
    "SGD and clipnorm": lambda: optimizers.SGD(0.1, clipnorm=0.1),
    "Ftrl": lambda: optimizers.Ftrl(0.1),
    "Lamb": lambda: optimizers.Lamb(0.1),
    "Adafactor": lambda: optimizers.Adafactor(0.1),
    "gradient accumulation": lambda: optimizers.Adam(0.1, gradient_accumulation_steps=2),
}


def _make_case(name: str, make_optimizer: Callable[[], Any]) -> None:
    @case(f"keras.layers.Embedding with {name}", batches(INDICES, TARGETS))
    def embedding() -> Any:
        stack = [layers.Embedding(20, 4), layers.Flatten(), layers.Dense(1)]
        model = sequential(*stack, shape=(4,), dtype="int32")
        model.compile(make_optimizer(), "mse")
        return model


for optimizer_name, make in OPTIMIZERS.items():
    _make_case(optimizer_name, make)


@case("keras.layers.Embedding, shared by two inputs", batches((INDICES, INDICES[:, ::-1]), TARGETS))
def shared_embedding() -> Any:
    inputs = [keras.Input((4,), dtype="int32"), keras.Input((4,), dtype="int32")]
    embed, other = layers.Embedding(20, 4), layers.Embedding(20, 4)
    both = layers.Concatenate()([embed(inputs[0]), embed(inputs[1]), other(inputs[0])])
    model = keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(both)))
    model.compile(optimizers.Adam(0.1), "mse")
    return model


@case("keras.layers.Embedding that a regularizer reads", batches(INDICES, TARGETS))
def regularized_embedding() -> Any:
    embed = layers.Embedding(20, 4, embeddings_regularizer="l2")
    model = sequential(embed, layers.Flatten(), layers.Dense(1), shape=(4,), dtype="int32")
    model.compile(optimizers.Adam(0.1), "mse")
    return model


@case("keras.layers.Embedding, ReversibleEmbedding's weights used twice", batches(INDICES, INDICES))
def tied_embedding() -> Any:
    inputs = keras.Input((4,), dtype="int32")
    embed = layers.ReversibleEmbedding(20, 4)
    model = keras.Model(inputs, embed(embed(inputs), reverse=True))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.Adam(0.1), loss)
    return model


class OwnStep(keras.Model):  # type: ignore[misc]
    """Looks up rows in a `train_step` of its own, which may call two optimizers."""

    def __init__(self, parts: int) -> None:
        super().__init__()
        self.embed, self.head = layers.Embedding(20, 4), layers.Dense(1)
        self.optimizers = [optimizers.Adam(0.1) for _ in range(parts)]

    def call(self, inputs: Any) -> Any:
        return self.head(ops.mean(self.embed(inputs), axis=1))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean((self(x) - y) ** 2)
        weights = [self.embed.trainable_variables, self.head.trainable_variables]
        if len(self.optimizers) == 1:
            weights = [self.trainable_variables]
        gradients = tape.gradient(loss, weights)
        for optimizer, gradient, part in zip(self.optimizers, gradients, weights, strict=True):
            optimizer.apply(gradient, part)
        return self._track(loss)

    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        return self._track(ops.mean((self(x) - y) ** 2))

    def _track(self, loss: Any) -> dict[str, Any]:
        self._loss_tracker.update_state(loss)
        return {"loss": self._loss_tracker.result()}


@case("keras.layers.Embedding in a train_step of the model's own", batches(INDICES, TARGETS))
def own_step() -> Any:
    model = OwnStep(1)
    model.compile()
    return model


@case(
    "keras.layers.Embedding in a train_step with two optimizers",
    batches(INDICES, TARGETS),
    refused=dict.fromkeys(ON_PS, "calls optimizers several times"),
)
def own_step_with_two_optimizers() -> Any:
    model = OwnStep(2)
    model.compile()
    return model
