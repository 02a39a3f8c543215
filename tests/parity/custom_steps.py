"""Models with a `train_step` or `test_step` of their own, as the examples of Keras write them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf
from keras import layers, losses, metrics, ops, optimizers
from tests.parity import table
from tests.parity.table import FEATURES, TARGETS, WEIGHTS, Case, batches

CUSTOM_STEPS: list[Case] = []
case = partial(table.case, table=CUSTOM_STEPS)


def stack(inputs: int, *sizes: int, **options: Any) -> Any:
    hidden = [layers.Dense(size, activation="tanh", **options) for size in sizes[:-1]]
    return keras.Sequential([keras.Input((inputs,)), *hidden, layers.Dense(sizes[-1], **options)])


class Noise(layers.Layer):  # type: ignore[misc]
    """Samples from a mean and a variance; the noise is that of the example, to be comparable."""

    def call(self, inputs: Any) -> Any:
        mean, log_var, example = inputs
        return mean + ops.exp(0.5 * log_var) * ops.sin(70.0 * example[:, :2])


class VAE(keras.Model):  # type: ignore[misc]
    def __init__(self, normalizes: bool = True) -> None:
        super().__init__()
        inputs = keras.Input((8,))
        hidden = layers.Dense(6, activation="relu")(inputs)
        hidden = layers.BatchNormalization()(hidden) if normalizes else hidden
        mean, log_var = layers.Dense(2)(hidden), layers.Dense(2)(hidden)
        sample = Noise()([mean, log_var, inputs])
        self.encoder = keras.Model(inputs, [mean, log_var, sample])
        self.decoder = stack(2, 6, 8)
        self.total_loss_tracker = metrics.Mean(name="total_loss")
        self.reconstruction_loss_tracker = metrics.Mean(name="reconstruction_loss")
        self.kl_loss_tracker = metrics.Mean(name="kl_loss")

    @property
    def metrics(self) -> list[Any]:
        return [
            self.total_loss_tracker,
            self.reconstruction_loss_tracker,
            self.kl_loss_tracker,
        ]

    def compute(self, data: Any, training: bool) -> dict[str, Any]:
        mean, log_var, sample = self.encoder(data, training=training)
        reconstruction = self.decoder(sample)
        squares = ops.sum((data - reconstruction) ** 2, axis=1)
        kl = ops.sum(-0.5 * (1 + log_var - mean**2 - ops.exp(log_var)), axis=1)
        return {"reconstruction": ops.mean(squares), "kl": ops.mean(kl)}

    def track(self, computed: dict[str, Any]) -> dict[str, Any]:
        self.total_loss_tracker.update_state(computed["reconstruction"] + computed["kl"])
        self.reconstruction_loss_tracker.update_state(computed["reconstruction"])
        self.kl_loss_tracker.update_state(computed["kl"])
        return {
            "loss": self.total_loss_tracker.result(),
            "reconstruction_loss": self.reconstruction_loss_tracker.result(),
            "kl_loss": self.kl_loss_tracker.result(),
        }

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            computed = self.compute(data[0], training=True)
            total = computed["reconstruction"] + computed["kl"]
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.track(computed)

    def test_step(self, data: Any) -> dict[str, Any]:
        return self.track(self.compute(data[0], training=False))


@case("VAE")
def vae() -> Any:
    model = VAE()
    model.compile(optimizers.Adam(0.01))
    return model


class Base(keras.Model):  # type: ignore[misc]
    """A small network, whose `train_step` each case writes."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.network = stack(8, 6, 1, **options)

    def call(self, inputs: Any, training: bool = False) -> Any:
        return self.network(inputs, training=training)


class Documented(Base):
    """The step of Keras' guide."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(y=y, y_pred=y_pred, sample_weight=sample_weight)
            loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {m.name: m.result() for m in self.metrics}


def _add_documented(name: str, make: Callable[[], Any], **options: Any) -> None:
    @case(f"step of the guide, {name}", batches(FEATURES, TARGETS, WEIGHTS))
    def documented() -> Any:
        model = Documented(**options)
        model.compile(make(), "mse", weighted_metrics=[metrics.MeanAbsoluteError(name="mae")])
        return model


_DOCUMENTED: dict[str, Callable[[], Any]] = {
    "clipnorm": lambda: optimizers.SGD(0.1, clipnorm=0.1),
    "weight decay": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "use_ema": lambda: optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8),
    "gradient_accumulation_steps": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "schedule": lambda: optimizers.SGD(optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "Lamb": lambda: optimizers.Lamb(0.01),
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1), initial_scale=8.0
    ),
}
for _name, _make in _DOCUMENTED.items():
    _add_documented(_name, _make)
_add_documented("mixed_bfloat16", lambda: optimizers.SGD(0.1), dtype="mixed_bfloat16")


class Preprocessed(Base):
    def train_step(self, data: Any) -> Any:
        x, y = data
        return super().train_step((x * 0.5, y))


@case("super().train_step")
def preprocessed() -> Any:
    model = Preprocessed(activity_regularizer=keras.regularizers.L2(0.1))
    model.compile(optimizers.Adam(0.01), "mse", metrics=["mae"])
    return model


class Penalized(Base):
    """Adds a loss in a layer, and takes only the last layer's gradients."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        head = self.network.layers[-1].trainable_variables
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ops.mean((y - y_pred) ** 2) + ops.sum(self.losses)
        self.optimizer.apply(tape.gradient(loss, head), head)
        self.tracker.update_state(loss)
        return {"loss": self.tracker.result()}

    def __init__(self) -> None:
        super().__init__(
            activity_regularizer=keras.regularizers.L2(0.1),
            kernel_regularizer=keras.regularizers.L2(0.1),
        )
        self.tracker = metrics.Mean(name="tracked")


@case("add_loss and regularizers, some of the weights")
def penalized() -> Any:
    model = Penalized()
    model.compile(optimizers.AdamW(0.01, weight_decay=0.1), "mse")
    return model


class Distiller(keras.Model):  # type: ignore[misc]
    """A `compile` with losses of its own, and a teacher that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = stack(8, 6, 3), stack(8, 4, 3)
        self.teacher.trainable = False

    def compile(self, optimizer: Any, student_loss_fn: Any, distillation_loss_fn: Any) -> None:
        super().compile(optimizer=optimizer, metrics=[metrics.MeanAbsoluteError(name="mae")])
        self.student_loss_fn = student_loss_fn
        self.distillation_loss_fn = distillation_loss_fn

    def call(self, inputs: Any) -> Any:
        return self.student(inputs)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        teacher = ops.softmax(self.teacher(x, training=False) / 3.0)
        distilled = self.distillation_loss_fn(teacher, ops.softmax(y_pred / 3.0)) * 9.0
        return 0.1 * self.student_loss_fn(y, y_pred) + 0.9 * distilled

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self.student(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        weights = self.student.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self._loss_tracker.update_state(loss)
        logs: dict[str, Any] = self.compute_metrics(x, y, y_pred)
        return logs


@case("distillation with a compile of its own")
def distiller() -> Any:
    model = Distiller()
    model.compile(optimizers.Adam(0.01), losses.MeanSquaredError(), losses.KLDivergence())
    return model


class GAN(keras.Model):  # type: ignore[misc]
    def __init__(self, d_steps: int = 1) -> None:
        super().__init__()
        self.generator, self.discriminator = stack(1, 6, 8), stack(8, 6, 1)
        self.d_steps = d_steps

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer
        self.loss_fn = loss_fn
        self.d_loss_metric = metrics.Mean(name="d_loss")
        self.g_loss_metric = metrics.Mean(name="g_loss")

    @property
    def metrics(self) -> list[Any]:
        return [self.d_loss_metric, self.g_loss_metric]

    def judge(self, real: Any, fake: Any) -> Any:
        real, fake = self.discriminator(real), self.discriminator(fake)
        return self.loss_fn(ops.ones_like(real), real) + self.loss_fn(ops.zeros_like(fake), fake)

    def train_step(self, data: Any) -> dict[str, Any]:
        real, noise = data
        for _ in range(self.d_steps):
            fake = self.generator(noise)
            with tf.GradientTape() as tape:
                d_loss = self.judge(real, fake)
            weights = self.discriminator.trainable_weights
            gradients = tape.gradient(d_loss, weights)
            self.d_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        with tf.GradientTape() as tape:
            fake = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(ops.ones_like(fake), fake)
        weights = self.generator.trainable_weights
        gradients = tape.gradient(g_loss, weights)
        self.g_optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {"d_loss": self.d_loss_metric.result(), "g_loss": self.g_loss_metric.result()}

    def test_step(self, data: Any) -> dict[str, Any]:
        self.d_loss_metric.update_state(self.judge(data[0], self.generator(data[1])))
        return {"d_loss": self.d_loss_metric.result()}


def compile_gan(model: Any, d_optimizer: Any = None, g_optimizer: Any = None) -> Any:
    model.compile(
        d_optimizer or optimizers.Adam(0.01),
        g_optimizer or optimizers.SGD(0.05, momentum=0.9),
        losses.BinaryCrossentropy(from_logits=True),
    )
    return model


@case("GAN with two optimizers")
def gan() -> Any:
    return compile_gan(GAN())


@case("GAN, three steps of the discriminator")
def gan_d_steps() -> Any:
    return compile_gan(
        GAN(3),
        optimizers.AdamW(0.01, weight_decay=0.1, clipnorm=0.1),
        optimizers.Adam(0.01, gradient_accumulation_steps=2),
    )


@case("GAN with LossScaleOptimizer and use_ema")
def gan_ema() -> Any:
    return compile_gan(
        GAN(),
        optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=8.0),
        optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8),
    )


class WassersteinGAN(GAN):
    """A gradient penalty with nested tapes, and weights that the step clips itself."""

    def judge(self, real: Any, fake: Any) -> Any:
        between = 0.3 * real + 0.7 * fake
        with tf.GradientTape() as tape:
            tape.watch(between)
            judged = self.discriminator(between, training=True)
        gradient = tape.gradient(judged, [between])[0]
        norm = ops.sqrt(ops.sum(gradient**2, axis=1) + 1e-6)
        distance = ops.mean(self.discriminator(fake)) - ops.mean(self.discriminator(real))
        return distance + 10.0 * ops.mean((norm - 1.0) ** 2)

    def train_step(self, data: Any) -> dict[str, Any]:
        logs: dict[str, Any] = super().train_step(data)
        for weight in self.discriminator.trainable_weights:
            weight.assign(ops.clip(weight, -0.4, 0.4))
        return logs


@case("gradient penalty and weight clipping")
def wasserstein() -> Any:
    return compile_gan(WassersteinGAN(2))


class Simultaneous(GAN):
    """Two tapes around one forward pass, of which one outlives the other's update."""

    def train_step(self, data: Any) -> dict[str, Any]:
        real, noise = data
        with tf.GradientTape() as d_tape, tf.GradientTape(persistent=True) as g_tape:
            fake = self.generator(noise)
            d_loss = self.judge(real, fake)
            judged = self.discriminator(fake)
            g_loss = self.loss_fn(ops.ones_like(judged), judged)
        d_weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(d_tape.gradient(d_loss, d_weights), d_weights)
        # The gradient of weights that have been updated in the meantime.
        late = g_tape.gradient(g_loss, d_weights)
        self.d_optimizer.apply(late, d_weights)
        g_weights = self.generator.trainable_weights
        self.g_optimizer.apply(g_tape.gradient(g_loss, g_weights), g_weights)
        self.d_loss_metric.update_state(d_loss)
        self.g_loss_metric.update_state(g_loss)
        return {metric.name: metric.result() for metric in self.metrics}


@case("two tapes at once, and gradients after an update")
def simultaneous() -> Any:
    return compile_gan(Simultaneous())


class Adversarial(GAN):
    """Two optimizers that train the same weights."""

    def train_step(self, data: Any) -> dict[str, Any]:
        logs: dict[str, Any] = super().train_step(data)
        weights = [*self.generator.trainable_weights, *self.discriminator.trainable_weights]
        with tf.GradientTape() as tape:
            loss = self.judge(data[0], self.generator(data[1]))
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return logs


@case("optimizers that share weights")
def adversarial() -> Any:
    return compile_gan(Adversarial())


class Teacher(Base):
    """A moving average of the updated weights, a counter, and centers that the loss reads."""

    def __init__(self) -> None:
        super().__init__()
        self.average = stack(8, 6, 1)
        self.average.trainable = False
        self.count = self.add_weight(
            shape=(), dtype="int32", initializer="zeros", trainable=False, name="count"
        )
        self.center = self.add_weight(
            shape=(1,), initializer="zeros", trainable=False, name="center"
        )

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            self.center.assign(0.9 * self.center + 0.1 * ops.mean(y_pred, axis=0))
            loss = ops.mean((y - y_pred) ** 2) + ops.mean((y_pred - self.center) ** 2)
            loss += ops.mean((y_pred - self.average(x)) ** 2)
        weights = self.network.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for slow, fast in zip(self.average.weights, self.network.weights, strict=True):
            slow.assign(0.9 * slow + 0.1 * fast)
        self.count.assign_add(1)
        self._loss_tracker.update_state(loss)
        return {"loss": self._loss_tracker.result()}


@case("moving average of the updated weights")
def teacher() -> Any:
    model = Teacher()
    model.compile(optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


class Annealed(Base):
    """Reads the optimizer's iterations, and keeps state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.center = self.add_weight(
            shape=(1,), initializer="zeros", trainable=False, name="center"
        )

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            self.center.assign(0.9 * self.center + 0.1 * ops.mean(y_pred, axis=0))
            share = ops.cast(self.optimizer.iterations, "float32") / 10.0
            loss = ops.mean((y - y_pred) ** 2) + share * ops.mean((y_pred - self.center) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        self._loss_tracker.update_state(loss)
        return {"loss": self._loss_tracker.result(), "rate": self.optimizer.learning_rate}


@case("iterations of the optimizer, and state that the loss reads")
def annealed() -> Any:
    model = Annealed()
    model.compile(optimizers.SGD(0.1), "mse")
    return model


class Evaluated(Base):
    def test_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        errors = ops.abs(y - self(x, training=False))
        self.compute_metrics(x, y, self(x, training=False))
        return {"error": ops.mean(errors), "rmse": self.get_metrics_result()["rmse"]}


@case(
    "test_step alone",
    difference="A number that the step computes from its batch is averaged over the examples; "
    "Keras keeps the number of the last batch.",
)
def evaluated() -> Any:
    model = Evaluated()
    model.compile(optimizers.SGD(0.1), "mse", metrics=[metrics.RootMeanSquaredError(name="rmse")])
    return model
