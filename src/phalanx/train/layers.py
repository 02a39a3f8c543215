"""Embedding: a Keras layer on a sparse table."""

from typing import Any

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.types import KerasVariable, Tensor
from phalanx.train.variables.sparse_tables import current_lookups, mark_table

__all__ = ["Embedding"]


@keras.saving.register_keras_serializable(package="phalanx")
class Embedding(keras.layers.Layer):  # type: ignore[misc]
    """An embedding layer on a sparse table: a step reads and updates only the rows it looks up.

        users = phalanx.layers.Embedding(50_000_000, 64)
        vectors = users(user_indices)

    On parameter servers, the rows are distributed evenly over all of them. The layer has no
    regularizer and no constraint, which would need every row in every step. An optimizer with
    slots, such as Adam, updates a row and its slots only when the row is looked up.

    Args:
        input_dim: The number of rows.
        output_dim: The size of each vector.
        embeddings_initializer: The initializer of the table.
        mask_zero: Whether index 0 is padding that later layers must mask.
        options: Other arguments of `keras.layers.Layer`, such as `name`.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: str | keras.initializers.Initializer = "uniform",
        mask_zero: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        for name, size in (("input_dim", input_dim), ("output_dim", output_dim)):
            if not isinstance(size, int) or size < 1:
                raise ConfigurationError(f"{name} is {size!r}: it must be an integer above 0")
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        # Autocast would round the indices in half precision.
        self.autocast = False

    def build(self, input_shape: tuple[int | None, ...] | None = None) -> None:
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
    def embeddings(self) -> KerasVariable:
        """The whole table. It cannot be read inside a step, which has only the rows it looks up."""
        if current_lookups() is not None:
            raise ConfigurationError(
                f"{self.name}.embeddings is read inside a step, which has only the rows that it "
                "looks up: call the layer with the indices of the rows"
            )
        return self.table

    def call(self, inputs: Tensor) -> Tensor:
        lookups = current_lookups()
        if lookups is not None and self.table.trainable:
            rows = lookups.look_up(self.table, inputs)
        else:
            rows = tf.gather(self.table.value, tf.cast(inputs, tf.int64))
        return tf.cast(rows, self.compute_dtype)

    def compute_mask(self, inputs: Tensor, mask: Tensor | None = None) -> Tensor | None:
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "mask_zero": self.mask_zero,
        }
