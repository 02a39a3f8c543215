"""Plain tf.Modules as models."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from phalanx.train.step.modules import convert_variables


class Nested(tf.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.shared = tf.Variable([1.0], trainable=False)


class Outer(tf.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.inner = Nested()
        self.layers: list[Any] = [{"w": tf.Variable([2.0])}, (tf.Variable([3.0]), "text")]
        self.again = self.inner.shared


def test_variables_are_replaced_wherever_they_are() -> None:
    module = Outer()
    named = convert_variables(module)
    assert {name: variable.numpy().tolist() for name, variable in named.items()} == {
        "inner/shared": [1.0],
        "layers/0/w": [2.0],
        "layers/1/0": [3.0],
    }
    assert module.layers[0]["w"] is named["layers/0/w"]
    assert module.layers[1] == (named["layers/1/0"], "text")
    assert isinstance(module.inner.shared, keras.Variable) and not module.inner.shared.trainable


def test_variable_with_two_names_is_converted_once() -> None:
    module = Outer()
    convert_variables(module)
    assert module.again is module.inner.shared
