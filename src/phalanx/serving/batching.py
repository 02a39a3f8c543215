"""Requests that come at the same time are answered by one call of the model."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray[Any, Any]]


class OverloadedError(Exception):
    """More requests wait than may."""


@dataclass(frozen=True)
class _Request:
    arrays: Arrays
    rows: int
    # Only what has the same types and shapes can be put together.
    kind: tuple[Any, ...]
    answer: Future[Arrays] = field(default_factory=Future)


class Batcher:
    """Puts rows of several requests into one call, in one thread.

    While the model is busy requests gather, so that batches grow with the load by themselves. A
    lone request does not wait, unless `wait_seconds` says for how long it may.
    """

    def __init__(
        self,
        call: Callable[[Arrays], Arrays],
        *,
        max_rows: int = 64,
        wait_seconds: float = 0.0,
        max_waiting: int = 2000,
    ) -> None:
        self._call = call
        self._max_rows = max_rows
        self._wait_seconds = wait_seconds
        self._waiting: queue.Queue[_Request | None] = queue.Queue(max_waiting)
        self._held: _Request | None = None
        self._thread = threading.Thread(target=self._serve, name="batcher", daemon=True)
        self.calls = 0

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what waits, then no more."""
        self._waiting.put(None)
        self._thread.join()

    def ask(self, arrays: Arrays, rows: int, timeout: float) -> Arrays:
        """The model's answer for these rows."""
        kind = tuple((name, value.dtype, value.shape[1:]) for name, value in sorted(arrays.items()))
        request = _Request(arrays, rows, kind)
        try:
            self._waiting.put_nowait(request)
        except queue.Full:
            raise OverloadedError(f"{self._waiting.maxsize} requests wait already") from None
        return request.answer.result(timeout)

    def _serve(self) -> None:
        while True:
            first = self._held or self._waiting.get()
            self._held = None
            if first is None:
                return
            self._answer(self._gather(first))

    def _gather(self, first: _Request) -> list[_Request]:
        batch, rows = [first], first.rows
        deadline = time.monotonic() + self._wait_seconds
        while rows < self._max_rows:
            try:
                left = deadline - time.monotonic()
                other = self._waiting.get(left > 0, max(left, 0))
            except queue.Empty:
                break
            if other is None or other.kind != first.kind or rows + other.rows > self._max_rows:
                self._hold(other)
                break
            batch.append(other)
            rows += other.rows
        return batch

    def _hold(self, other: _Request | None) -> None:
        """What does not fit is the next batch's first; an order to stop goes back."""
        if other is None:
            self._waiting.put(None)
        else:
            self._held = other

    def _answer(self, batch: list[_Request]) -> None:
        self.calls += 1
        try:
            if len(batch) == 1:
                batch[0].answer.set_result(self._call(batch[0].arrays))
                return
            joined = {
                name: np.concatenate([request.arrays[name] for request in batch])
                for name in batch[0].arrays
            }
            answers = self._call(joined)
            rows = sum(request.rows for request in batch)
            for name, value in answers.items():
                if value.shape[:1] != (rows,):
                    raise ValueError(f"{name} has no row for each of {rows}: {value.shape}")
            start = 0
            for request in batch:
                end = start + request.rows
                request.answer.set_result({n: value[start:end] for n, value in answers.items()})
                start = end
        except Exception as error:
            self._fail(batch, error)

    def _fail(self, batch: list[_Request], error: Exception) -> None:
        """What went wrong together, as by one bad request, is asked again, one by one."""
        if len(batch) == 1:
            batch[0].answer.set_exception(error)
            return
        for request in batch:
            if not request.answer.done():
                self._answer([request])
