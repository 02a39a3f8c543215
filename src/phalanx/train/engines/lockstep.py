"""Traces the steps of several local replicas side by side, where they exchange tensors."""

import queue
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Generic, TypeVar

import tensorflow as tf

T = TypeVar("T")
Item = TypeVar("Item")


class Lockstep(Generic[Item, T]):
    """Runs functions in threads, one at a time, and stops each where it exchanges something.

    When all have stopped, `exchange` gets what they exchange, in order, and all continue. Only one
    thread runs at any time, so that the graph that they trace has always the same order.

    Args:
        exchange: Called in the thread of `run`, with one item of each function.
    """

    def __init__(self, exchange: Callable[[list[Item]], None]) -> None:
        self._exchange = exchange

    def run(self, functions: Sequence[Callable[[Callable[[Item], None]], T]]) -> list[T]:
        """Call each function with a function that exchanges an item; return their results."""
        graph = tf.compat.v1.get_default_graph()
        # Each thread has its own stack of devices then.
        graph.switch_to_thread_local()
        tracers = [_Tracer(function, graph) for function in functions]
        try:
            items = [tracer.resume() for tracer in tracers]
            while any(item is not None for item in items):
                if any(item is None for item in items):
                    raise AssertionError("the step differs between the replicas of this process")
                self._exchange([item for item in items if item is not None])
                items = [tracer.resume() for tracer in tracers]
            return [tracer.result() for tracer in tracers]
        finally:
            for tracer in tracers:
                tracer.abandon()


class _Abandoned(BaseException):
    """Ends the thread of a function that is not needed any more."""


class _Tracer(Generic[Item, T]):
    def __init__(self, function: Callable[[Callable[[Item], None]], T], graph: tf.Graph) -> None:
        self._function = function
        self._graph = graph
        self._go: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._stopped: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._results: list[T] = []
        self._error: BaseException | None = None
        context = copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._trace,), daemon=True)
        self._thread.start()

    def resume(self) -> Item | None:
        """Let the function run to its next exchange; return the item, or None at its end."""
        if not self._thread.is_alive():
            return None
        self._go.put(True)
        item = self._stopped.get()
        if self._error is not None:
            raise self._error
        return item

    def result(self) -> T:
        return self._results[0]

    def abandon(self) -> None:
        self._go.put(False)
        self._thread.join()

    def _trace(self) -> None:
        try:
            self._wait()
            with self._graph.as_default():
                self._results.append(self._function(self._stop))
        except _Abandoned:
            pass
        except BaseException as error:
            self._error = error
        self._stopped.put(None)

    def _stop(self, item: Item) -> None:
        self._stopped.put(item)
        self._wait()

    def _wait(self) -> None:
        if not self._go.get():
            raise _Abandoned
