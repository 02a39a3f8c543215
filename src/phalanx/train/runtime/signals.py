"""SIGTERM as a request to save and stop."""

import contextlib
import signal
import threading
from collections.abc import Iterator


class StopRequest(threading.Event):
    """An event that is set once the process has been asked to stop. Call it to read the event."""

    def __call__(self) -> bool:
        return self.is_set()


@contextlib.contextmanager
def catch_sigterm() -> Iterator[StopRequest]:
    """Turn SIGTERM into a stop request; outside the main thread, Python cannot do that.

    After the first one, the process is about to exit: others are ignored up to its end.
    """
    request = StopRequest()
    try:
        before = signal.signal(signal.SIGTERM, lambda number, frame: request.set())
    except ValueError:
        yield request
        return
    try:
        yield request
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN if request() else before)
