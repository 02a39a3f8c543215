"""The experiment: a residual network, CIFAR-10's pictures, and how the one learns the other."""

from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from pictures import Pictures, as_input

import phalanx
from phalanx.models.resnet import DataFormat, resnet

# The batch that learning rates are given for.
USUAL_BATCH = 128


@dataclass(frozen=True)
class Schedule:
    """How the learning rate goes; `peak` is for updates of 128 pictures.

    One cycle ends with the run, after so many epochs or steps.
    """

    kind: str
    peak: float
    epochs: int | None
    steps: int | None

    def make(self, pictures: int, update: int) -> Any:
        """The rate for every update, when each is made of `update` pictures."""
        peak = self.peak * update / USUAL_BATCH
        epoch = pictures // update
        if self.kind == "staged":
            boundaries = [epoch * number for number in (82, 123, 300)]
            rates = [peak * part for part in (1.0, 0.1, 0.01, 0.002)]
            return keras.optimizers.schedules.PiecewiseConstantDecay(boundaries, rates)
        ends = [self.steps or 0, epoch * (self.epochs or 0)]
        steps = min((end for end in ends if end), default=1)
        warmup = max(1, steps // 5)
        return keras.optimizers.schedules.CosineDecay(
            peak / 20, max(1, steps - warmup), warmup_target=peak, warmup_steps=warmup
        )


@keras.saving.register_keras_serializable(package="cifar10")
class ManyViews(keras.Model):  # type: ignore[misc]
    """Outside of training, says what it says in the mean of a picture and of five like it.

    Half of the mean is the picture and its mirror, half these two moved by one pixel each way.
    """

    def call(self, images: Any, training: bool | None = None, mask: Any = None) -> Any:
        if training:
            return super().call(images, training=training)
        framed = keras.ops.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
        views = [(images, 1 / 4), (framed[:, :-2, :-2], 1 / 8), (framed[:, 2:, 2:], 1 / 8)]
        return sum(
            part * super(ManyViews, self).call(seen, training=False)
            for view, part in views
            for seen in (view, view[:, :, ::-1])
        )


@dataclass(frozen=True)
class Cifar10(phalanx.Experiment):
    """ResNet on CIFAR-10, with momentum and weight decay."""

    pictures: Pictures
    schedule: Schedule
    num_layers: int = 44
    eval_batch_size: int = 100
    momentum: float = 0.9
    weight_decay: float = 2e-4
    batch_norm_decay: float = 0.9
    label_smoothing: float = 0.0
    many_views: bool = False
    data_format: DataFormat | None = None
    log_shapes: bool = False

    def model(self) -> keras.Model:
        network = resnet(
            self.num_layers,
            classes=len(self.pictures.classes()),
            weight_decay=0.0,  # the optimizer's part
            batch_norm_decay=self.batch_norm_decay,
            data_format=self.data_format,
            log_shapes=self.log_shapes,
        )
        return ManyViews(network.input, network.output) if self.many_views else network

    def optimizer(self, context: phalanx.Context) -> keras.optimizers.Optimizer:
        rate = self.schedule.make(self.pictures.count(), context.examples_per_update)
        # Through the momentum, decay in the loss would count 1 / (1 - momentum) times.
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
        return self.pictures.train(context.batch_size, context, context.seed)

    def eval_data(self, context: phalanx.Context) -> tf.data.Dataset:
        return self.pictures.test(self.eval_batch_size, context)

    def example_features(self) -> dict[str, Any]:
        return {"image": tf.io.FixedLenFeature([], tf.string)}

    def preprocess(self, features: Any) -> Any:
        return as_input(tf.io.decode_raw(features["image"], tf.uint8))
