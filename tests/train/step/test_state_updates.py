"""State on asynchronous parameter servers, which other trainers change between read and update."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.train.step.accumulation import accumulate_parts
from phalanx.train.step.state_updates import make_updates
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables

TRAINERS = 64
MEAN, DEVIATION = 5.0, 2.0
SPEC = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1]))


class Server:
    """A parameter server: state that one trainer after the other reads, and later updates."""

    def __init__(self, layer: Any, parts: int = 1) -> None:
        def make_model() -> Any:
            model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            return model

        step = StepFunction(phalanx.Experiment(model=make_model), phalanx.Context())
        step.build(SPEC)
        self.variables = DeviceVariables.place(
            step.make_host_variables(), ["/device:CPU:0"], Clipping()
        )
        self.variables.push()
        compute = make_updates(accumulate_parts(step, parts))

        def update(state: list[Any], x: Any) -> list[Any]:
            batch = (x, x[:, :1])
            _, updates = compute(self.variables, self.variables.read(), state, batch, 0, 0)
            state_variables = self.variables.select_changing(self.variables.state_variables())
            for variable, one in zip(state_variables, updates, strict=True):
                variable.assign(one.apply(variable.read_value()))
            return self.read()

        self.update = tf.function(update)

    def read(self) -> list[Any]:
        return self.variables.read_state()

    def pull(self) -> None:
        self.variables.pull()


def draw(random: Any, count: int = 32) -> Any:
    return tf.constant(random.normal(MEAN, DEVIATION, size=(count, 3)), tf.float32)


@pytest.mark.parametrize("momentum", [0.9, 0.99])
def test_averages_of_many_trainers_converge(momentum: float) -> None:
    layer = keras.layers.BatchNormalization(momentum=momentum)
    server = Server(layer)

    @tf.function  # type: ignore[untyped-decorator]
    def train(updates: Any) -> Any:
        [start] = server.read()
        states = tf.stack([start] * TRAINERS)
        lowest = tf.reduce_min(start)
        for number in tf.range(updates):
            trainer = number % TRAINERS
            x = tf.random.normal([32, 3], MEAN, DEVIATION)
            [state] = server.update([states[trainer]], x)
            states = tf.tensor_scatter_nd_update(states, [[trainer]], [state])
            # The mean begins at 0 and is positive too.
            lowest = tf.minimum(lowest, tf.reduce_min(state))
        return lowest

    tf.random.set_seed(1)
    assert float(train(tf.constant(40 * TRAINERS))) >= 0
    server.pull()
    assert np.asarray(layer.moving_mean) == pytest.approx(MEAN, abs=0.5)
    assert np.asarray(layer.moving_variance) == pytest.approx(DEVIATION**2, abs=1.0)


@pytest.mark.parametrize("parts", [1, 2])
def test_one_trainer_computes_what_keras_does(parts: int) -> None:
    layer, ours = (keras.layers.BatchNormalization(momentum=0.9) for _ in range(2))
    server, random = Server(ours, parts), np.random.default_rng(0)
    state = server.read()
    for _ in range(20):
        # A batch of two equal halves has the same mean and variance in one part and in two.
        x = tf.concat([draw(random)] * 2, 0)
        state = server.update(state, x)
        layer(x, training=True)
    server.pull()
    for name in ("moving_mean", "moving_variance"):
        wanted = np.asarray(getattr(layer, name))
        np.testing.assert_allclose(np.asarray(getattr(ours, name)), wanted, rtol=1e-6)


class Others(keras.layers.Layer):  # type: ignore[misc]
    """State of other kinds than averages."""

    def build(self, input_shape: Any) -> None:
        for name, dtype in (("total", "float32"), ("last", "float32"), ("unit", "float32"),
                            ("count", "int64"), ("called", "bool")):  # fmt: skip
            start = 2**40 if name == "count" else 1 if name == "unit" else 0
            weight = self.add_weight(
                shape=(3,), dtype=dtype, trainable=False, name=name,
                initializer=lambda shape, dtype, start=start: tf.cast(tf.fill(shape, start), dtype),
            )  # fmt: skip
            setattr(self, name, weight)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.total.assign(self.total + 2.0)
            self.last.assign(inputs[0])
            self.unit.assign(keras.ops.normalize(self.unit.value + inputs[0], axis=-1))
            self.count.assign(self.count + 1)
            self.called.assign(keras.ops.ones((3,), "bool"))
        return inputs


def test_state_of_every_kind_is_updated_by_many_trainers() -> None:
    layer = Others()
    server, random = Server(layer), np.random.default_rng(0)
    states = [server.read()] * TRAINERS
    for number in range(10 * TRAINERS):
        trainer = number % TRAINERS
        x = draw(random)
        states[trainer] = server.update(states[trainer], x)
    server.pull()
    updates = 10 * TRAINERS
    np.testing.assert_array_equal(np.asarray(layer.total), [2.0 * updates] * 3)
    np.testing.assert_allclose(np.asarray(layer.last), x[0], rtol=1e-5)
    # Each element depends on all, so this is the vector that the last trainer proposed.
    assert np.linalg.norm(np.asarray(layer.unit)) == pytest.approx(1.0)
    np.testing.assert_array_equal(np.asarray(layer.count), [2**40 + updates] * 3)
    assert np.asarray(layer.called).all()
