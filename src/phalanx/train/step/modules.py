"""Plain `tf.Module`s as models: their variables become Keras variables."""

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.types import KerasVariable


def convert_variables(module: tf.Module) -> dict[str, KerasVariable]:
    """Replace each `tf.Variable` of a module by a Keras variable, which a pure step needs.

    Returns the Keras variables by the path of their attribute, such as `layers/0/kernel`.
    """
    converted: dict[int, KerasVariable] = {}
    named: dict[str, KerasVariable] = {}

    def replace(value: Any, path: str) -> Any:
        if isinstance(value, tf.Variable):
            if id(value) not in converted:
                converted[id(value)] = keras.Variable(
                    value.numpy(),
                    dtype=value.dtype.name,
                    trainable=value.trainable,
                    name=path.replace("/", "_"),
                )
                named[path] = converted[id(value)]
            return converted[id(value)]
        if isinstance(value, tf.Module):
            visit(value, path)
        elif isinstance(value, list):
            for index, item in enumerate(list(value)):
                value[index] = replace(item, f"{path}/{index}")
        elif isinstance(value, dict):
            for key, item in list(value.items()):
                value[key] = replace(item, f"{path}/{key}")
        elif isinstance(value, tuple):
            items = [replace(item, f"{path}/{index}") for index, item in enumerate(value)]
            # TensorFlow wraps the tuples of a module; the wrapper tells the class of the tuple.
            kind = value.__class__
            return kind(*items) if hasattr(value, "_fields") else kind(items)
        elif isinstance(value, keras.layers.Layer):
            raise ConfigurationError(
                f"{type(module).__name__} is a tf.Module, but its attribute {path} is the Keras "
                f"layer {value.name}, whose variables a tf.Module does not have: derive the model "
                "from keras.Model"
            )
        return value

    def visit(owner: tf.Module, path: str) -> None:
        for key, value in _attributes(owner):
            setattr(owner, key, replace(value, f"{path}/{key}" if path else key))

    expected = len(module.trainable_variables)
    visit(module, "")
    found = sum(variable.trainable for variable in named.values())
    if found != expected:
        raise ConfigurationError(
            f"{type(module).__name__} has {expected} trainable variables, but only {found} are "
            f"tf.Variables in its attributes, lists, dicts and tuples ({', '.join(named)}): do not "
            "keep variables in other objects"
        )
    return named


def _attributes(owner: tf.Module) -> Iterator[tuple[str, Any]]:
    for key, value in list(vars(owner).items()):
        if not key.startswith(("_self_", "_tf_", "_name", "_scope_name")):
            yield key, value
