"""tf.contrib.framework.arg_scope."""

from functools import partial
from typing import Any

import pytest

from phalanx.compat.tf1.contrib.framework import (
    add_arg_scope,
    arg_scope,
    arg_scoped_arguments,
    has_arg_scope,
)


@add_arg_scope
def layer(inputs: int, units: int = 1, rate: float = 0.0) -> tuple[int, int, float]:
    return inputs, units, rate


@add_arg_scope
def other(inputs: int, rate: float = 0.0) -> tuple[int, float]:
    return inputs, rate


def test_scope_sets_arguments_that_the_caller_does_not() -> None:
    with arg_scope([layer, other], rate=0.5):
        assert layer(1) == (1, 1, 0.5)
        assert layer(1, 2, 0.1) == (1, 2, 0.1)
        assert layer(1, rate=0.2) == (1, 1, 0.2)
        assert other(1) == (1, 0.5)
    assert layer(1) == (1, 1, 0.0)


def test_scopes_nest_and_can_be_set_again() -> None:
    with arg_scope([layer], units=3), arg_scope([layer], rate=0.5) as inner:
        assert layer(1) == (1, 3, 0.5)
    with arg_scope([layer], units=7), arg_scope(inner):
        assert layer(1) == (1, 3, 0.5)


def test_scope_of_a_partial_function_is_that_of_the_function() -> None:
    with arg_scope([partial(layer, units=2)], rate=0.5):
        assert partial(layer, units=2)(1) == (1, 2, 0.5)
    assert has_arg_scope(layer)
    assert arg_scoped_arguments(layer) == ("inputs", "units", "rate")


@pytest.mark.parametrize(
    ("functions", "error"),
    [([len], "decorate it with add_arg_scope"), ([layer], "has no argument depth")],
)
def test_what_a_scope_cannot_set_is_an_error(functions: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error), arg_scope(functions, depth=3):
        pass
