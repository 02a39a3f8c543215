"""Knows the loss of a peer in errors that TensorFlow reports under other names."""

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import tensorflow.compat.v1 as tf

_RECOVERABLE = (tf.errors.AbortedError, tf.errors.UnavailableError)
"""The errors after which a `MonitoredSession` creates its session anew."""
_LOST_PEER = re.compile(r"^(ABORTED|UNAVAILABLE): From /job:", re.MULTILINE)
Result = TypeVar("Result")


def is_lost_peer(error: BaseException) -> bool:
    """Whether the reason of an error is that a peer was lost, or has started again."""
    if isinstance(error, tf.errors.OutOfRangeError) or not isinstance(error, tf.errors.OpError):
        return False
    return isinstance(error, _RECOVERABLE) or bool(_LOST_PEER.search(error.message))


def recoverable(function: Callable[..., Result]) -> Callable[..., Result]:
    """Return a function that raises `AbortedError` for every loss of a peer.

    A step that fails on several tasks has several errors, and TensorFlow raises the one whose name
    is the last in the alphabet: a task whose part was cancelled hides the one that was lost.

    Args:
        function: Creates a session, or runs a step.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Result:
        try:
            return function(*args, **kwargs)
        except tf.errors.OpError as error:
            if isinstance(error, _RECOVERABLE) or not is_lost_peer(error):
                raise
            raise tf.errors.AbortedError(error.node_def, error.op, error.message) from error

    return call


class LostPeerHook(tf.train.SessionRunHook):
    """Lets a `MonitoredSession` recover from every loss of a peer."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Name the loss of a peer in all later runs of the session."""
        session.run = recoverable(session.run)
