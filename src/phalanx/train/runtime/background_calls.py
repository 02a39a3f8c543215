"""Calls that may never return, such as those to a worker that is lost."""

import atexit
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_EXIT_SECONDS = 5.0
_pending: set[threading.Thread] = set()


def call_in_background(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call a function in a daemon thread: unlike an executor's, it does not block the exit."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        finally:
            _pending.discard(thread)

    thread = threading.Thread(target=call, daemon=True)
    _pending.add(thread)
    thread.start()
    return future


def wait_for_background_calls(seconds: float = _EXIT_SECONDS) -> bool:
    """Wait for all calls, and return whether they have returned.

    A thread that returns from TensorFlow after Python has shut down aborts the process.
    """
    deadline = time.monotonic() + seconds
    for thread in list(_pending):
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in list(_pending))


atexit.register(wait_for_background_calls)
