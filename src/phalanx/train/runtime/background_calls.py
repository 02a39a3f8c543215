"""Calls that may never return, such as those to a worker that is lost.

An executor's threads would block the exit of the process until their calls return. These are daemon
threads; each takes the next call when its last one has returned, so that a thread is started only
if all others are busy.
"""

import atexit
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_EXIT_SECONDS = 5.0


class _Callers:
    """The threads, those of them that are idle, and the number of calls that have not returned."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.pending = 0
        self._idle: list[queue.SimpleQueue[Callable[[], None]]] = []

    def begin(self, call: Callable[[], None]) -> None:
        with self.changed:
            self.pending += 1
            calls = self._idle.pop() if self._idle else None
        if calls is None:
            calls = queue.SimpleQueue()
            calls.put(call)
            threading.Thread(
                target=self._run, args=(calls,), name="phalanx-call", daemon=True
            ).start()
        else:
            calls.put(call)

    def _run(self, calls: queue.SimpleQueue[Callable[[], None]]) -> None:
        while True:
            # No name is bound to the call: an idle thread must not keep its arguments alive.
            calls.get()()
            with self.changed:
                self.pending -= 1
                self._idle.append(calls)
                self.changed.notify_all()


_callers = _Callers()


def call_in_background(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call a function in a daemon thread: unlike an executor's, it does not block the exit."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)

    _callers.begin(call)
    return future


def wait_for_background_calls(seconds: float = _EXIT_SECONDS) -> bool:
    """Wait for all calls, and return whether they have returned.

    A thread that returns from TensorFlow after Python has shut down aborts the process.
    """
    with _callers.changed:
        return _callers.changed.wait_for(lambda: not _callers.pending, seconds)


def _forget_threads() -> None:
    """A forked process has none of the threads of its parent."""
    global _callers  # noqa: PLW0603
    _callers = _Callers()


os.register_at_fork(after_in_child=_forget_threads)
atexit.register(wait_for_background_calls)
