"""Plain `tf.Module`s, made fit for the pure step: their variables become Keras variables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf


def adopt(module: tf.Module) -> dict[str, Any]:
    """Replace every `tf.Variable` of a module; returns the new ones by their attribute's path."""
    adopted: dict[int, Any] = {}
    named: dict[str, Any] = {}

    def replace(value: Any, path: str) -> Any:
        if isinstance(value, tf.Variable):
            if id(value) not in adopted:
                adopted[id(value)] = keras.Variable(
                    value.numpy(),
                    dtype=value.dtype.name,
                    trainable=value.trainable,
                    name=path.replace("/", "_"),
                )
                named[path] = adopted[id(value)]
            return adopted[id(value)]
        if isinstance(value, tf.Module):
            visit(value, path)
        elif isinstance(value, list):
            for index, item in enumerate(list(value)):
                value[index] = replace(item, f"{path}/{index}")
        elif isinstance(value, dict):
            for key, item in list(value.items()):
                value[key] = replace(item, f"{path}/{key}")
        elif isinstance(value, tuple) and any(isinstance(item, tf.Variable) for item in value):
            return tuple(replace(item, f"{path}/{index}") for index, item in enumerate(value))
        return value

    def visit(owner: tf.Module, path: str) -> None:
        for key, value in _attributes(owner):
            setattr(owner, key, replace(value, f"{path}/{key}" if path else key))

    visit(module, "")
    return named


def _attributes(owner: Any) -> Iterator[tuple[str, Any]]:
    for key, value in list(vars(owner).items()):
        if not key.startswith(("_self_", "_tf_", "_name", "_scope_name")):
            yield key, value
