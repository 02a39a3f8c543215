"""Knows the loss of a peer in errors that TensorFlow reports under other names."""

import logging
import re
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import tensorflow.compat.v1 as tf

LOG = logging.getLogger("phalanx")

CLOSE_SECONDS = 5.0
"""How long a session may take to close: it waits for tasks that may not answer.

Launchers end a worker 10 s after the chief, before it could report its end to the ps.
"""
_RECOVERABLE = (tf.errors.AbortedError, tf.errors.UnavailableError)
"""The errors after which a `MonitoredSession` creates its session anew."""
_LOST_PEER = re.compile(r"^(ABORTED|UNAVAILABLE): From /job:", re.MULTILINE)
Result = TypeVar("Result")


def is_lost_peer(error: Any) -> bool:
    """Whether the reason of an error is that a peer was lost, or has started again."""
    if isinstance(error, tf.errors.OutOfRangeError) or not isinstance(error, tf.errors.OpError):
        return False
    return isinstance(error, _RECOVERABLE) or bool(_LOST_PEER.search(error.message))


def recoverable(function: Callable[..., Result], coord: Any = None) -> Callable[..., Result]:
    """Return a function that raises `AbortedError` for every loss of a peer.

    A step that fails on several tasks has several errors, and TensorFlow raises the one whose name
    is the last in the alphabet: a task whose part was cancelled hides the one that was lost.

    Args:
        function: Creates a session, or runs a step.
        coord: The coordinator of the session. One of its threads may have found the loss first, and
            closed the session: then the step is cancelled.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Result:
        try:
            return function(*args, **kwargs)
        except tf.errors.OpError as error:
            reason = error if is_lost_peer(error) else _find_requested(coord)
            if isinstance(error, _RECOVERABLE) or not is_lost_peer(reason):
                raise
            raise tf.errors.AbortedError(reason.node_def, reason.op, reason.message) from error

    return call


def _find_requested(coord: Any) -> Any:
    """Return the error with which a thread has ended the session, or None."""
    try:
        if coord is not None:
            coord.raise_requested_exception()
    except tf.errors.OpError as error:
        return error
    return None


class LostPeerHook(tf.train.SessionRunHook):
    """Lets a `MonitoredSession` recover from every loss of a peer."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Name the loss of a peer in all later runs of the session, and limit its end."""
        session.run = recoverable(session.run, coord)
        close = session.close
        session.close = lambda: _close_in_time(close)


def _close_in_time(close: Callable[[], None]) -> None:
    """Close a session, but do not wait for ever for a peer that does not answer."""
    if sys.is_finalizing():  # No thread starts any more, and the process closes its connections.
        return
    thread = threading.Thread(target=close, daemon=True)
    thread.start()
    thread.join(CLOSE_SECONDS)
    if thread.is_alive():
        LOG.warning("a session did not close within %.0f s, and is left", CLOSE_SECONDS)
