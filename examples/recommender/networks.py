"""Two models for clicks, each on hashed tables of embeddings."""

from typing import Any

import keras
import tensorflow as tf
from clicks import CATEGORIES, NUMBERS

import phalanx


@keras.saving.register_keras_serializable(package="recommender")
class FieldNames(keras.layers.Layer):  # type: ignore[misc]
    """Puts the number of its field before each category, so that all fields share one table."""

    def call(self, categories: Any) -> Any:
        return tf.constant([f"{field}=" for field in range(CATEGORIES)]) + categories

    def compute_output_spec(self, categories: Any) -> Any:
        return keras.KerasTensor(categories.shape, dtype="string")


@keras.saving.register_keras_serializable(package="recommender")
class Crosses(keras.layers.Layer):  # type: ignore[misc]
    """Adds a feature for each pair of neighbouring categories."""

    def call(self, categories: Any) -> Any:
        pairs = tf.strings.join([categories[:, :-1], categories[:, 1:]], separator="&")
        return tf.concat([categories, pairs], 1)

    def compute_output_spec(self, categories: Any) -> Any:
        return keras.KerasTensor((categories.shape[0], 2 * CATEGORIES - 1), dtype="string")


@keras.saving.register_keras_serializable(package="recommender")
class Interactions(keras.layers.Layer):  # type: ignore[misc]
    """The dot product of each pair of vectors."""

    def call(self, vectors: Any) -> Any:
        products = tf.matmul(vectors, vectors, transpose_b=True)
        pairs = [(i, j) for i in range(vectors.shape[1]) for j in range(i)]
        flat = tf.reshape(products, [-1, vectors.shape[1] ** 2])
        return tf.gather(flat, [i * vectors.shape[1] + j for i, j in pairs], axis=1)

    def compute_output_shape(self, vectors_shape: Any) -> Any:
        return (vectors_shape[0], vectors_shape[1] * (vectors_shape[1] - 1) // 2)


def make_dlrm(rows: int, width: int) -> keras.Model:
    """Build a DLRM: dot products of embeddings, between two networks of dense layers."""
    numbers, categories = _inputs()
    dense = _mlp(keras.ops.log1p(keras.ops.maximum(numbers, 0.0)), [64, width])
    vectors = _embed(rows, width)(FieldNames()(categories))
    joined = keras.layers.Concatenate(axis=1)([dense[:, None, :], vectors])
    top = keras.layers.Concatenate()([dense, Interactions()(joined)])
    logit = keras.layers.Dense(1)(_mlp(top, [64, 32]))
    return keras.Model({"numbers": numbers, "categories": categories}, logit)


def make_wide_and_deep(rows: int, width: int) -> keras.Model:
    """Build a linear model of categories and their crosses, beside a deep one of embeddings."""
    numbers, categories = _inputs()
    named = FieldNames()(categories)
    wide = phalanx.layers.Embedding(
        rows, 1, "zeros", combiner="sum", hash_inputs=True, name="wide"
    )(Crosses()(named))
    vectors = keras.layers.Flatten()(_embed(rows, width)(named))
    numeric = keras.ops.log1p(keras.ops.maximum(numbers, 0.0))
    deep = _mlp(keras.layers.Concatenate()([numeric, vectors]), [64, 32])
    logit = keras.layers.Add()([wide, keras.layers.Dense(1)(deep)])
    return keras.Model({"numbers": numbers, "categories": categories}, logit)


NETWORKS = {"dlrm": make_dlrm, "wide-deep": make_wide_and_deep}


def _inputs() -> tuple[Any, Any]:
    return (
        keras.Input((NUMBERS,), name="numbers"),
        keras.Input((CATEGORIES,), dtype="string", name="categories"),
    )


def _embed(rows: int, width: int) -> phalanx.layers.Embedding:
    initializer = keras.initializers.RandomNormal(stddev=0.05)
    return phalanx.layers.Embedding(rows, width, initializer, hash_inputs=True, name="embeddings")


def _mlp(values: Any, sizes: list[int]) -> Any:
    for size in sizes:
        values = keras.layers.Dense(size, activation="relu")(values)
    return values
