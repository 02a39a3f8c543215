"""Calls that may never come back, such as those to a worker that is gone."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

_LAST_SECONDS = 5.0
_under_way: set[threading.Thread] = set()


def call_in_background(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Its result to come. Unlike those of an executor, no call keeps the program from ending."""
    future: Future[Any] = Future()

    def call() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)
        finally:
            _under_way.discard(thread)

    thread = threading.Thread(target=call, daemon=True)
    _under_way.add(thread)
    thread.start()
    return future


def are_all_back(seconds: float = _LAST_SECONDS) -> bool:
    """Whether every call has come back, some time granted.

    A thread that comes back from TensorFlow when Python is no longer there aborts the process.
    """
    deadline = time.monotonic() + seconds
    for thread in list(_under_way):
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in list(_under_way))


atexit.register(are_all_back)
