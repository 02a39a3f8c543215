"""Layers for what Keras has no layer for."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.variables.sparse_tables import current_lookups, mark_table


@keras.saving.register_keras_serializable(package="phalanx")
class Embedding(keras.layers.Layer):  # type: ignore[misc]
    """A large table of vectors: a step reads and changes only the rows it looks up.

        users = phalanx.layers.Embedding(50_000_000, 64)
        vectors = users(user_numbers)

    On parameter servers the rows are spread evenly over all of them. It takes what
    `keras.layers.Embedding` takes, but for a regularizer and a constraint, which would need every
    row at every step. A row that a batch does not have stays as it is: an optimizer with a memory,
    such as Adam, moves a row only when it is looked up.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        mask_zero: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        for name, size in (("input_dim", input_dim), ("output_dim", output_dim)):
            if not isinstance(size, int) or size < 1:
                raise ConfigurationError(f"{name} is {size!r}: it must be a number above 0")
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        # Numbers of rows, which half precision would spoil, come in as they are.
        self.autocast = False

    def build(self, input_shape: Any = None) -> None:
        """Make the table."""
        self.table = self.add_weight(
            shape=(self.input_dim, self.output_dim),
            initializer=self.embeddings_initializer,
            name="embeddings",
            trainable=True,
            autocast=False,
        )
        mark_table(self.table)
        self.built = True

    @property
    def embeddings(self) -> Any:
        """The whole table; not while a step is run, which has only the rows it looks up."""
        if current_lookups() is not None:
            raise ConfigurationError(
                f"{self.name}.embeddings is read inside a step, where the table is not there as a "
                "whole: call the layer with the numbers of the rows"
            )
        return self.table

    def call(self, inputs: Any) -> Any:
        """The rows with these numbers."""
        lookups = current_lookups()
        if lookups is not None and self.table.trainable:
            rows = lookups.look_up(self.table, inputs)
        else:
            rows = tf.gather(self.table.value, tf.cast(inputs, tf.int64))
        return tf.cast(rows, self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Number 0 stands for nothing, if so asked."""
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Any) -> Any:
        """One vector for each number."""
        return (*input_shape, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        """What makes the same layer again."""
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "mask_zero": self.mask_zero,
        }
