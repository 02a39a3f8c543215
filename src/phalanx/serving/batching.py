"""Batching: one call of the model for requests that arrive at the same time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from phalanx.train.types import NamedArrays


class OverloadedError(Exception):
    """Too many requests are waiting."""


@dataclass(frozen=True)
class _Request:
    arrays: NamedArrays
    rows: int
    # Only arrays of the same dtypes and shapes can be concatenated.
    kind: tuple[object, ...]
    response: Future[NamedArrays] = field(default_factory=Future)


class Batcher:
    """Concatenates the rows of several requests and calls the model, in one thread.

    Requests queue up while the model is busy, so that batches grow with the load. A single request
    does not wait for others, unless `wait_seconds` is set.
    """

    def __init__(
        self,
        call: Callable[[NamedArrays], NamedArrays],
        *,
        max_rows: int = 64,
        wait_seconds: float = 0.0,
        max_waiting: int = 2000,
    ) -> None:
        self._call = call
        self._max_rows = max_rows
        self._wait_seconds = wait_seconds
        self._waiting: queue.Queue[_Request | None] = queue.Queue(max_waiting)
        self._next: _Request | None = None
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Answer the requests that are waiting, then stop."""
        self._waiting.put(None)
        self._thread.join()

    def predict(self, arrays: NamedArrays, rows: int, timeout: float) -> NamedArrays:
        """Return the outputs of the model for these rows."""
        kind = tuple((name, value.dtype, value.shape[1:]) for name, value in sorted(arrays.items()))
        request = _Request(arrays, rows, kind)
        try:
            self._waiting.put_nowait(request)
        except queue.Full:
            raise OverloadedError(f"{self._waiting.maxsize} requests are waiting already") from None
        return request.response.result(timeout)

    def _run(self) -> None:
        while (first := self._next or self._waiting.get()) is not None:
            self._next = None
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
            if other is None:
                self._waiting.put(None)
                break
            if other.kind != first.kind or rows + other.rows > self._max_rows:
                self._next = other
                break
            batch.append(other)
            rows += other.rows
        return batch

    def _answer(self, batch: list[_Request]) -> None:
        try:
            if len(batch) == 1:
                batch[0].response.set_result(self._call(batch[0].arrays))
                return
            names = batch[0].arrays
            outputs = self._call({n: np.concatenate([r.arrays[n] for r in batch]) for n in names})
            rows = sum(request.rows for request in batch)
            for name, value in outputs.items():
                if value.shape[:1] != (rows,):
                    raise ValueError(f"{name} has no row for each of {rows}: {value.shape}")
            start = 0
            for request in batch:
                end = start + request.rows
                request.response.set_result({n: value[start:end] for n, value in outputs.items()})
                start = end
        except Exception as error:
            if len(batch) == 1:
                batch[0].response.set_exception(error)
                return
            # One bad request fails the whole batch: answer each request alone.
            for request in batch:
                if not request.response.done():
                    self._answer([request])
