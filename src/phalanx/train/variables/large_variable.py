"""Large variables: dense ones of more bytes than one message may have, described on the host."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from phalanx.train.types import KerasVariable
from phalanx.train.variables import row_transfer
from phalanx.train.variables.described_variable import DescribedVariable

_IS_ACTIVE: ContextVar[bool] = ContextVar("is_active", default=False)


class LargeVariable(DescribedVariable):
    """A large variable of a model, which each step reads as a whole, or a slot for it."""


@contextlib.contextmanager
def describe_large_variables() -> Iterator[None]:
    """Only describe the large variables that Keras creates in the `with` block.

    Layers create variables of Keras' own class. A large one becomes a `LargeVariable` at the moment
    when Keras would allocate its value.
    """
    initialize = keras.Variable._initialize_with_initializer
    token = _IS_ACTIVE.set(True)
    keras.Variable._initialize_with_initializer = _describe_or(initialize)
    try:
        yield
    finally:
        keras.Variable._initialize_with_initializer = initialize
        _IS_ACTIVE.reset(token)


def _describe_or(initialize: Any) -> Any:
    def begin(variable: KerasVariable, initializer: Any) -> None:
        # Other threads create variables too.
        if _IS_ACTIVE.get() and type(variable) is keras.Variable and _is_large(variable):
            variable.__class__ = LargeVariable
            variable.describe(initializer, f"{variable.path}:0")
            variable.in_ranges = True
        else:
            initialize(variable, initializer)

    return begin


def _is_large(variable: KerasVariable) -> bool:
    """Whether a variable is larger than a message; its rows must fit into one."""
    shape = tuple(variable.shape)
    size = int(tf.as_dtype(variable._dtype).size)
    row = math.prod(shape[1:]) * size
    return bool(shape) and row <= row_transfer.CHUNK_BYTES < shape[0] * row
