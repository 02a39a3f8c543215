"""SIGTERM as a request to save and stop."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


class StopRequest:
    """A flag that is set once the process has been asked to stop. Call it to read the flag."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()


@contextlib.contextmanager
def catch_sigterm() -> Iterator[StopRequest]:
    """Turn SIGTERM into a stop request; outside the main thread, Python cannot do that."""
    request = StopRequest()

    def handle(number: int, frame: object) -> None:
        request.set()

    try:
        before = signal.signal(signal.SIGTERM, handle)
    except ValueError:
        yield request
        return
    try:
        yield request
    finally:
        signal.signal(signal.SIGTERM, before)
