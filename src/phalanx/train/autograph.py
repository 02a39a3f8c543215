"""Keeps AutoGraph from converting functions of Phalanx."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import tensorflow as tf

F = TypeVar("F", bound=Callable[..., Any])


def unconverted(function: F) -> F:
    """Mark a function that AutoGraph need not convert, for a `tf.function` to be traced sooner.

    AutoGraph converts every function that a `tf.function` calls, which takes longer than tracing
    them. A function with this mark has no condition or loop that depends on a tensor, and calls no
    code of the user, who relies on AutoGraph.
    """
    return cast(F, tf.autograph.experimental.do_not_convert(function))
