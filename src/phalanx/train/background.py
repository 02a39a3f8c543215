"""Calls that may never come back, such as those to a worker that is gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def call_in_background(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Its result to come. Unlike those of an executor, no call keeps the program from ending."""
    future: Future[Any] = Future()

    def call() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future
