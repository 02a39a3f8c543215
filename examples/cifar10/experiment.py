"""The experiment: a residual network, trained on CIFAR-10."""

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from pictures import Cifar10Images, as_input

import phalanx
from phalanx.models.resnet import DataFormat, resnet

# The batch size that --learning-rate refers to.
REFERENCE_BATCH_SIZE = 128


@dataclass(frozen=True)
class Schedule:
    """A learning-rate schedule; `peak` is the highest rate, for updates of 128 images.

    The one-cycle schedule ends with the run, after `epochs` or `steps`.
    """

    kind: str
    peak: float
    epochs: int | None
    steps: int | None

    def make(self, examples: int, batch_size: int) -> Any:
        """Return the rate of every update, each of `batch_size` out of `examples` images."""
        peak = self.peak * batch_size / REFERENCE_BATCH_SIZE
        steps_per_epoch = examples // batch_size
        if self.kind == "staged":
            boundaries = [steps_per_epoch * epoch for epoch in (82, 123, 300)]
            rates = [peak * factor for factor in (1.0, 0.1, 0.01, 0.002)]
            return keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, rates)
        ends = [self.steps or 0, steps_per_epoch * (self.epochs or 0)]
        steps = min((end for end in ends if end), default=1)
        warmup = max(1, steps // 5)
        return keras.optimizers.schedules.CosineDecay(
            peak / 20, max(1, steps - warmup), warmup_target=peak, warmup_steps=warmup
        )


@keras.saving.register_keras_serializable(package="cifar10")
class ManyViews(keras.Model):  # type: ignore[misc]
    """A model with test-time augmentation: it averages its predictions over six views of an image.

    Half of the weight is on the image and its mirror image, the other half on these two, shifted
    diagonally by one pixel in either direction.
    """

    def call(self, images: Any, training: bool | None = None, mask: Any = None) -> Any:
        if training:
            return super().call(images, training=training)
        padded = keras.ops.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
        views = [(images, 1 / 4), (padded[:, :-2, :-2], 1 / 8), (padded[:, 2:, 2:], 1 / 8)]
        return sum(
            weight * super(ManyViews, self).call(image, training=False)
            for view, weight in views
            for image in (view, view[:, :, ::-1])
        )


@dataclass(frozen=True)
class Cifar10(phalanx.Experiment):
    """A ResNet on CIFAR-10, trained with momentum and weight decay."""

    images: Cifar10Images
    schedule: Schedule
    num_layers: int = 44
    eval_batch_size: int = 100
    momentum: float = 0.9
    weight_decay: float = 2e-4
    batch_norm_decay: float = 0.9
    batch_norm_epsilon: float = 1e-5
    label_smoothing: float = 0.0
    many_views: bool = False
    data_format: DataFormat | None = None
    log_shapes: bool = False

    def model(self) -> keras.Model:
        network = resnet(
            self.num_layers,
            classes=len(self.images.classes()),
            weight_decay=0.0,  # the optimizer applies it
            batch_norm_decay=self.batch_norm_decay,
            batch_norm_epsilon=self.batch_norm_epsilon,
            data_format=self.data_format,
            log_shapes=self.log_shapes,
        )
        return ManyViews(network.input, network.output) if self.many_views else network

    def optimizer(self, context: phalanx.Context) -> keras.optimizers.Optimizer:
        rate = self.schedule.make(self.images.count(), context.examples_per_update)
        # Decay in the loss, as in the papers, is multiplied by 1 / (1 - momentum).
        decay = self.weight_decay / (1 - self.momentum) or None
        optimizer = keras.optimizers.SGD(
            rate, self.momentum, nesterov=self.momentum > 0, weight_decay=decay
        )
        if decay:
            optimizer.exclude_from_weight_decay(var_names=["gamma", "beta", "bias"])
        return optimizer

    def loss(self, labels: Any, logits: Any) -> Any:
        if not self.label_smoothing:
            return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return keras.losses.categorical_crossentropy(
            keras.ops.one_hot(labels, logits.shape[-1]),
            logits,
            from_logits=True,
            label_smoothing=self.label_smoothing,
        )

    def metrics(self) -> list[Any]:
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def train_data(self, context: phalanx.Context) -> tf.data.Dataset:
        return self.images.train(context.batch_size, context, context.seed)

    def eval_data(self, context: phalanx.Context) -> tf.data.Dataset:
        return self.images.test(self.eval_batch_size, context)

    def example_features(self) -> dict[str, Any]:
        return {"image": tf.io.FixedLenFeature([], tf.string)}

    def preprocess(self, features: Any) -> Any:
        return as_input(tf.io.decode_raw(features["image"], tf.uint8))
