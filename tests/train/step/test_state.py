"""State, the variables that are not trainable: what a step returns of it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables

FEATURES = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
BATCH = (tf.constant(FEATURES), tf.constant(FEATURES[:, :1]))


def make_model() -> Any:
    frozen = keras.layers.Dense(5, trainable=False, name="frozen")
    normalized = keras.layers.BatchNormalization(momentum=0.9)
    fixed = keras.layers.BatchNormalization(trainable=False, name="fixed")
    stack = [keras.Input((3,)), frozen, normalized, fixed, keras.layers.Dense(1)]
    model = keras.Sequential(stack)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def place(devices: int = 1) -> tuple[StepFunction, DeviceVariables]:
    step = StepFunction(phalanx.Experiment(model=make_model), phalanx.Context())
    step.build(tf.nest.map_structure(tf.TensorSpec.from_tensor, BATCH))
    variables = DeviceVariables.place(
        step.make_host_variables(), ["/device:CPU:0"] * devices, Clipping()
    )
    variables.push()
    return step, variables


@pytest.mark.parametrize("devices", [1, 2])
def test_step_returns_only_the_state_that_it_assigns(devices: int) -> None:
    step, variables = place(devices)
    result = tf.function(
        lambda: step.train(variables, variables.read(), variables.read_state(), BATCH, 0, 0)
    )()
    # The mean and the variance of the one normalization that is trained.
    assert sum(int(tf.size(value)) for value in result.state) == 2 * 5


@pytest.mark.parametrize("devices", [1, 2])
def test_state_that_no_step_assigns_is_pushed_pulled_and_evaluated(devices: int) -> None:
    step, variables = place(devices)
    state = {v.path: v for v in variables.host_variables.state}
    before = {path: v.numpy() for path, v in state.items()}
    inputs, labels = BATCH
    wanted = keras.ops.mean((step.model(inputs, training=False) - labels) ** 2)
    report = step.evaluate(variables, variables.read(), variables.read_state(), BATCH)
    assert float(report[1] / report[0]) == pytest.approx(float(wanted), rel=1e-5)
    for variable in state.values():
        variable.assign(np.full(variable.shape, 7.0))
    variables.pull()
    assert len(state) == 8
    for path, variable in state.items():
        np.testing.assert_array_equal(variable.numpy(), before[path])
