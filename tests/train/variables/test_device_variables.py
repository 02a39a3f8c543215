"""Weights and their optimizer in several stores, as on several parameter servers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.host_variables import HostVariables


def train(optimizer: Any, stores: int, shapes: list[tuple[int, ...]]) -> list[Any]:
    """Return the weights and the slots after some updates, with a restart among them."""
    random = np.random.default_rng(0)
    weights = [
        keras.Variable(random.normal(size=shape).astype("float32"), name=f"w{position}")
        for position, shape in enumerate(shapes)
    ]
    host_variables = HostVariables(weights, [], optimizer)
    host_variables.build()
    for _ in range(2):
        variables = DeviceVariables.place(host_variables, ["/device:CPU:0"] * stores, Clipping())
        variables.push()
        for _ in range(2):
            gradients = [tf.constant(random.normal(size=shape), tf.float32) for shape in shapes]
            variables.apply(variables.layout.flatten(gradients))
        variables.pull()
    return [np.asarray(v) for v in [*weights, *optimizer.variables]]


@pytest.mark.parametrize(
    "shapes", [[(3, 2), (2,), (4, 5), (5,), (2, 3, 4)], [(3, 2), (4, 5)]], ids=["mixed", "matrices"]
)
@pytest.mark.parametrize("stores", [1, 2])
def test_adafactor_trains_the_same_in_several_stores(
    stores: int, shapes: list[tuple[int, ...]]
) -> None:
    random = np.random.default_rng(0)
    starts = [random.normal(size=shape).astype("float32") for shape in shapes]
    weights = [keras.Variable(s, name=f"w{position}") for position, s in enumerate(starts)]
    wanted = keras.optimizers.Adafactor(0.1)
    wanted.build(weights)
    for _ in range(4):
        gradients = [tf.constant(random.normal(size=shape), tf.float32) for shape in shapes]
        wanted.apply(gradients, weights)
    found = train(keras.optimizers.Adafactor(0.1), stores, shapes)
    for one, other in zip(found, [*weights, *wanted.variables], strict=True):
        np.testing.assert_allclose(one, np.asarray(other), rtol=1e-5, atol=1e-6)
