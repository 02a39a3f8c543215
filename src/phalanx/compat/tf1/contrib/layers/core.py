"""tf.contrib.layers: layers with weights, over tf.layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1.contrib.framework.scopes import add_arg_scope
from phalanx.compat.tf1.contrib.layers.initializers import xavier_initializer
from phalanx.compat.tf1.contrib.layers.scoped import channels, finish, layer_scope

_XAVIER = xavier_initializer()
_ZEROS = tf.zeros_initializer()


@dataclass(frozen=True)
class Weights:
    """The arguments that every layer with weights takes by name."""

    normalizer_fn: Any = None
    normalizer_params: Any = None
    weights_initializer: Any = _XAVIER
    weights_regularizer: Any = None
    biases_initializer: Any = _ZEROS
    biases_regularizer: Any = None
    reuse: bool | None = None
    variables_collections: Any = None
    outputs_collections: Any = None
    trainable: bool = True
    scope: Any = None

    def build(
        self,
        layer: Callable[..., Any],
        default_scope: str,
        inputs: Any,
        activation_fn: Any,
        kernels: Sequence[str] = ("kernel",),
        **arguments: Any,
    ) -> Any:
        """Return the outputs of a layer of tf.layers, normalized and activated.

        Args:
            layer: The function of tf.layers.
            default_scope: The name of the scope if the program gives none.
            inputs: The inputs.
            activation_fn: The activation; None for none.
            kernels: What tf.layers calls the weights of this layer.
            **arguments: The other arguments of the function.
        """
        for kernel in kernels:
            arguments.setdefault(f"{kernel}_initializer", self.weights_initializer)
            arguments[f"{kernel}_regularizer"] = self.weights_regularizer
        with layer_scope(
            self.scope, default_scope, inputs, self.reuse, self.variables_collections
        ) as opened:
            outputs = layer(
                inputs,
                use_bias=self.normalizer_fn is None and self.biases_initializer is not None,
                bias_initializer=self.biases_initializer,
                bias_regularizer=self.biases_regularizer,
                trainable=self.trainable,
                name=opened,
                reuse=self.reuse,
                **arguments,
            )
            if self.normalizer_fn is not None:
                outputs = self.normalizer_fn(outputs, **(self.normalizer_params or {}))
            return finish(outputs, opened, activation_fn, self.outputs_collections)


@add_arg_scope
def fully_connected(
    inputs: Any, num_outputs: int, activation_fn: Any = tf.nn.relu, **weights: Any
) -> Any:
    """Return a dense layer; see `tf.layers.dense`. By default it has a ReLU."""
    return Weights(**weights).build(
        tf.layers.dense, "fully_connected", inputs, activation_fn, units=num_outputs
    )


@add_arg_scope
def conv2d(
    inputs: Any,
    num_outputs: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: Any = 1,
    activation_fn: Any = tf.nn.relu,
    **weights: Any,
) -> Any:
    """Return a convolution; see `tf.layers.conv2d`. By default it has a ReLU."""
    return Weights(**weights).build(
        tf.layers.conv2d,
        "Conv",
        inputs,
        activation_fn,
        filters=num_outputs,
        kernel_size=kernel_size,
        strides=stride,
        padding=padding,
        data_format=channels(data_format),
        dilation_rate=rate,
    )


@add_arg_scope
def conv2d_transpose(
    inputs: Any,
    num_outputs: int,
    kernel_size: Any,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    activation_fn: Any = tf.nn.relu,
    **weights: Any,
) -> Any:
    """Return a transposed convolution; see `tf.layers.conv2d_transpose`."""
    return Weights(**weights).build(
        tf.layers.conv2d_transpose,
        "Conv2d_transpose",
        inputs,
        activation_fn,
        filters=num_outputs,
        kernel_size=kernel_size,
        strides=stride,
        padding=padding,
        data_format=channels(data_format),
    )


@add_arg_scope
def separable_conv2d(
    inputs: Any,
    num_outputs: int | None,
    kernel_size: Any,
    depth_multiplier: int = 1,
    stride: Any = 1,
    padding: str = "SAME",
    data_format: str | None = None,
    rate: Any = 1,
    activation_fn: Any = tf.nn.relu,
    pointwise_initializer: Any = None,
    **weights: Any,
) -> Any:
    """Return a convolution of each channel, then of all; see `tf.layers.separable_conv2d`."""
    if num_outputs is None:
        raise ValueError(
            "separable_conv2d: num_outputs=None is not supported: use tf.nn.depthwise_conv2d"
        )
    own = {"pointwise_initializer": pointwise_initializer} if pointwise_initializer else {}
    return Weights(**weights).build(
        tf.layers.separable_conv2d,
        "SeparableConv2d",
        inputs,
        activation_fn,
        kernels=("depthwise", "pointwise"),
        filters=num_outputs,
        kernel_size=kernel_size,
        strides=stride,
        padding=padding,
        data_format=channels(data_format),
        dilation_rate=rate,
        depth_multiplier=depth_multiplier,
        **own,
    )
