"""Keeps AutoGraph from converting functions of Phalanx, but not those of the user."""

from collections.abc import Callable
from functools import cache
from typing import Any, ParamSpec, TypeVar, cast

import tensorflow as tf

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
T = TypeVar("T")


def unconverted(function: F) -> F:
    """Mark a function that AutoGraph need not convert, for a `tf.function` to be traced sooner.

    AutoGraph converts every function that a `tf.function` calls, which takes longer than tracing
    them. A function with this mark has no condition or loop that depends on a tensor, and calls
    code of the user with `call_converted` only.
    """
    return cast(F, tf.autograph.experimental.do_not_convert(function))


def call_converted(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Call code of the user, which AutoGraph converts if this is inside of a `tf.function`."""
    if not tf.inside_function():
        return function(*arguments, **named)
    return cast(T, _convert_call()(function, arguments, named))


@cache
def _convert_call() -> Callable[..., Any]:
    return cast(Callable[..., Any], tf.autograph.to_graph(_call))


def _call(function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return function(*arguments, **named)
