"""SIGTERM: asked to end, save first."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


class StopRequest:
    """Set once the process was asked to end."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def __call__(self) -> bool:
        """Whether it was."""
        return self._event.is_set()

    def set(self) -> None:
        """Ask."""
        self._event.set()


@contextlib.contextmanager
def catch_sigterm() -> Iterator[StopRequest]:
    """Turn SIGTERM into a request; outside the main thread, where that cannot be, do nothing."""
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
