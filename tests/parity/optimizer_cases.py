"""Cases: the optimizers of Keras and their settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, optimizers
from tests.parity.table import ON_PS, case, perceptron, sequential

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: optimizers.SGD(0.05),
    "SGD with momentum": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    "SGD with weight decay": lambda: optimizers.SGD(0.1, weight_decay=0.1),
    "SGD with a schedule": lambda: optimizers.SGD(
        optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    ),
    "Adam": lambda: optimizers.Adam(0.01),
    "Adam with amsgrad": lambda: optimizers.Adam(0.01, amsgrad=True),
    "AdamW": lambda: optimizers.AdamW(0.01, weight_decay=0.1),
    "Adamax": lambda: optimizers.Adamax(0.01),
    "Nadam": lambda: optimizers.Nadam(0.01),
    "Adagrad": lambda: optimizers.Adagrad(0.01),
    "Adadelta": lambda: optimizers.Adadelta(0.5),
    "RMSprop": lambda: optimizers.RMSprop(0.01, momentum=0.9, centered=True),
    "Ftrl": lambda: optimizers.Ftrl(0.05),
    "Lion": lambda: optimizers.Lion(0.01),
    "Lamb": lambda: optimizers.Lamb(0.01),
    "Adafactor": lambda: optimizers.Adafactor(0.01),
    "Muon": lambda: optimizers.Muon(0.01),
    "Muon with excluded layers": lambda: optimizers.Muon(0.01, exclude_layers=["dense_1"]),
    "clipnorm": lambda: optimizers.SGD(0.1, clipnorm=0.1),
    "clipvalue": lambda: optimizers.SGD(0.1, clipvalue=0.05),
    "global_clipnorm": lambda: optimizers.SGD(0.1, global_clipnorm=0.1),
    "use_ema": lambda: optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8),
    "use_ema with overwriting": lambda: optimizers.SGD(
        0.1, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
    ),
    "use_ema with Adam": lambda: optimizers.Adam(0.01, use_ema=True, ema_momentum=0.8),
    "gradient_accumulation_steps": lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "loss_scale_factor": lambda: optimizers.SGD(0.1, loss_scale_factor=64.0),
    "loss_scale_factor with clipping": lambda: optimizers.SGD(
        0.1, loss_scale_factor=64.0, clipnorm=0.1
    ),
    "LossScaleOptimizer": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1), initial_scale=8.0
    ),
    "LossScaleOptimizer with clipping": lambda: optimizers.LossScaleOptimizer(
        optimizers.SGD(0.1, clipnorm=0.1), initial_scale=8.0
    ),
}


NO_LOSS_SCALE = dict.fromkeys(ON_PS, "needs a loss scale that parameter servers cannot share")


def _add_optimizer(name: str, make: Callable[[], Any]) -> None:
    @case(name, refused=NO_LOSS_SCALE if name.startswith("LossScale") else {})
    def make_model() -> Any:
        model = perceptron()
        model.compile(make(), "mse", metrics=["mae"])
        return model


for _name, _make in OPTIMIZERS.items():
    _add_optimizer(_name, _make)


@case(
    "ScheduleFreeAdamW",
    difference="Its momentum begins with the weights. `fit` builds the optimizer while it traces, "
    "so that Keras loses these values, and the weights collapse to zero.",
)
def schedule_free() -> Any:
    model = perceptron()
    model.compile(optimizers.ScheduleFreeAdamW(0.01), "mse")
    return model


@case("exclude_from_weight_decay by the variable's name")
def exclude_biases() -> Any:
    model, optimizer = perceptron(), optimizers.AdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.compile(optimizer, "mse")
    return model


@case("exclude_from_weight_decay by the layer's name")
def exclude_layer() -> Any:
    model = sequential(
        layers.Dense(16), layers.LayerNormalization(name="layer_norm"), layers.Dense(1)
    )
    optimizer = optimizers.AdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["layer_norm"])
    model.compile(optimizer, "mse")
    return model


@case("exclude_from_weight_decay inside a LossScaleOptimizer", refused=NO_LOSS_SCALE)
def exclude_with_loss_scale() -> Any:
    model, inner = perceptron(), optimizers.AdamW(0.01, weight_decay=0.5)
    inner.exclude_from_weight_decay(var_names=["bias"])
    model.compile(optimizers.LossScaleOptimizer(inner, initial_scale=8.0), "mse")
    return model


@case("weights without a gradient are not decayed")
def disconnected() -> Any:
    inputs = keras.Input((8,))
    output = layers.Dense(1)(layers.Dense(4)(inputs))
    unused = layers.Dense(3, name="unused")(inputs)
    model = keras.Model(inputs, [output, unused])
    model.compile(optimizers.AdamW(0.01, weight_decay=0.5), ["mse", None])
    return model
