"""Plain tf.Modules as models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import keras
import pytest
import tensorflow as tf

from phalanx.errors import ConfigurationError
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


class Pair(NamedTuple):
    first: Any
    second: Any


def test_modules_inside_tuples_are_found() -> None:
    module = Outer()
    module.pair = Pair(Nested(), tf.Variable([4.0]))
    module.tuple = (Nested(), (Nested(),))
    named = convert_variables(module)
    assert {"pair/0/shared", "pair/1", "tuple/0/shared", "tuple/1/0/shared"} <= set(named)
    assert module.pair.second is named["pair/1"]


def test_keras_layer_in_a_module_is_rejected() -> None:
    module = Outer()
    module.dense = keras.layers.Dense(2)
    with pytest.raises(
        ConfigurationError, match=r"attribute dense is the Keras layer dense.*Model"
    ):
        convert_variables(module)


class Frozen(Mapping[str, Any]):
    """A mapping that is no dict, in which TensorFlow finds variables."""

    def __init__(self, **values: Any) -> None:
        self._values = values

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def test_variable_that_cannot_be_replaced_is_rejected() -> None:
    module = Outer()
    module.more = Frozen(weight=tf.Variable([5.0]))
    with pytest.raises(
        ConfigurationError, match=r"has 3 trainable variables, but only 2 are tf\.Variables"
    ):
        convert_variables(module)
