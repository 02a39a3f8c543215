"""The residual networks for small images of He et al., arXiv:1512.03385 and 1603.05027.

    model = resnet(44, classes=10)

Three stages of 16, 32 and 64 filters work on images of 32x32, 16x16 and 8x8. Between stages, the
shortcut averages 2x2 pixels and pads the new channels with zeros: it has no weights.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.models.batch_norm import FusedBatchNormalization, Tensor

LOG = logging.getLogger("phalanx")

FILTERS = (16, 32, 64)

DataFormat = Literal["channels_last", "channels_first"]


def resnet(
    num_layers: int = 44,
    *,
    classes: int = 10,
    image_shape: tuple[int, int, int] = (32, 32, 3),
    version: Literal[1, 2] = 1,
    bottleneck: bool = False,
    weight_decay: float = 2e-4,
    batch_norm_decay: float = 0.997,
    batch_norm_epsilon: float = 1e-5,
    data_format: DataFormat | None = None,
    log_shapes: bool = False,
) -> keras.Model:
    """Build a residual network that maps images (height, width, channels) to logits.

    Args:
        num_layers: 6n+2 (20, 32, 44, 56, 110), or 9n+2 with `bottleneck`.
        classes: The number of classes.
        image_shape: The height, width and channels of an image.
        version: 1 normalizes after each convolution, 2 before it.
        bottleneck: Whether to use three convolutions in a unit instead of two.
        weight_decay: Half of it times the squared weights is added to the losses.
        batch_norm_decay: The momentum of the moving statistics.
        batch_norm_epsilon: Added to the variance.
        data_format: By default channels first if there is a GPU, else channels last.
        log_shapes: Whether to log the shape after each unit.

    Returns:
        The Keras model.
    """
    layers_per_unit = 3 if bottleneck else 2
    units, rest = divmod(num_layers - 2, 3 * layers_per_unit)
    if rest or units < 1:
        raise ConfigurationError(
            f"num_layers is {num_layers}: it must be {3 * layers_per_unit}n+2, as in "
            + ", ".join(str(3 * layers_per_unit * n + 2) for n in (3, 5, 7, 9, 18))
        )
    data_format = data_format or best_data_format()
    layers = _Layers(
        version, bottleneck, weight_decay, batch_norm_decay, batch_norm_epsilon, data_format
    )
    x = images = keras.Input(image_shape, name="image")
    if data_format == "channels_first":
        x = keras.ops.transpose(x, (0, 3, 1, 2))
    x = layers.convolve(x, FILTERS[0], 3, 1, "stem")
    if version == 1:
        x = layers.normalize(x, "stem")
    for stage, filters in enumerate(FILTERS):
        for unit in range(units):
            name = f"stage{stage + 1}_unit{unit + 1}"
            x = layers.add_unit(x, filters, 2 if stage and not unit else 1, name)
            if log_shapes:
                LOG.info("image after unit %s: %s", name, tuple(x.shape))
    if version == 2:
        x = layers.normalize(x, "top")
    x = keras.layers.GlobalAveragePooling2D(data_format=data_format, name="pool")(x)
    logits = keras.layers.Dense(
        classes, kernel_regularizer=layers.regularizer(), dtype="float32", name="logits"
    )(x)
    return keras.Model(images, logits, name=f"resnet{num_layers}_v{version}")


def best_data_format() -> DataFormat:
    """Channels first if there is a GPU; TensorFlow has no such convolutions on CPUs."""
    return "channels_first" if tf.config.list_physical_devices("GPU") else "channels_last"


@dataclass(frozen=True)
class _Layers:
    """The building blocks of the network."""

    version: int
    bottleneck: bool
    weight_decay: float
    batch_norm_decay: float
    batch_norm_epsilon: float
    data_format: DataFormat

    def regularizer(self) -> keras.Regularizer | None:
        return keras.regularizers.L2(self.weight_decay / 2) if self.weight_decay else None

    def convolve(self, x: Tensor, filters: int, size: int, stride: int, name: str) -> Tensor:
        return keras.layers.Conv2D(
            filters,
            size,
            stride,
            padding="same",
            use_bias=False,
            data_format=self.data_format,
            kernel_initializer="he_normal",
            kernel_regularizer=self.regularizer(),
            name=f"{name}_conv",
        )(x)

    def normalize(self, x: Tensor, name: str, activate: bool = True) -> Tensor:
        x = FusedBatchNormalization(
            self.batch_norm_decay, self.batch_norm_epsilon, self.data_format, name=f"{name}_norm"
        )(x)
        return keras.layers.ReLU(name=f"{name}_relu")(x) if activate else x

    def add_unit(self, x: Tensor, filters: int, stride: int, name: str) -> Tensor:
        if self.bottleneck:
            sizes = [(filters, 1, stride), (filters, 3, 1), (4 * filters, 1, 1)]
        else:
            sizes = [(filters, 3, stride), (filters, 3, 1)]
        y = x
        for number, (count, size, step) in enumerate(sizes, 1):
            layer_name = f"{name}_{number}"
            if self.version == 2:
                y = self.normalize(y, layer_name)
            y = self.convolve(y, count, size, step, layer_name)
            if self.version == 1:
                y = self.normalize(y, layer_name, activate=number < len(sizes))
        x = keras.layers.Add(name=f"{name}_add")(
            [self.add_shortcut(x, sizes[-1][0], stride, name), y]
        )
        return keras.layers.ReLU(name=f"{name}_relu")(x) if self.version == 1 else x

    def add_shortcut(self, x: Tensor, filters: int, stride: int, name: str) -> Tensor:
        """The input, averaged and padded with zeros to the shape of the output."""
        if stride > 1:
            x = keras.layers.AveragePooling2D(
                stride, data_format=self.data_format, padding="same", name=f"{name}_shortcut"
            )(x)
        axis = 1 if self.data_format == "channels_first" else 3
        missing = filters - x.shape[axis]
        if not missing:
            return x
        padding = [[0, 0]] * 4
        padding[axis] = [missing // 2, missing - missing // 2]
        return keras.ops.pad(x, padding)
