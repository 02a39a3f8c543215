"""A model with several clients: requests that arrive together become one call of the model."""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from phalanx.serving.rest import PredictRequest
from phalanx.train.export.signatures import Signature
from phalanx.train.types import NamedArrays

_STOP_SECONDS = 60.0


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
        on_call: Callable[[int], None] = lambda rows: None,
    ) -> None:
        self._call = call
        self._on_call = on_call
        self._max_rows = max_rows
        self._wait_seconds = wait_seconds
        self._waiting: queue.Queue[_Request | None] = queue.Queue(max_waiting)
        self._next: _Request | None = None
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)

    @property
    def waiting(self) -> int:
        """About how many requests wait for the model."""
        return self._waiting.qsize() + (self._next is not None)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Answer the requests that are waiting, then stop; give up on a model that hangs."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=_STOP_SECONDS)
            self._thread.join(_STOP_SECONDS)

    def predict(self, arrays: NamedArrays, rows: int, timeout: float) -> NamedArrays:
        return self.submit(arrays, rows).result(timeout)

    def submit(self, arrays: NamedArrays, rows: int) -> "Future[NamedArrays]":
        """The outputs, when they are there; a request that is cancelled first is not computed."""
        kind = tuple((name, value.dtype, value.shape[1:]) for name, value in sorted(arrays.items()))
        request = _Request(arrays, rows, kind)
        try:
            self._waiting.put_nowait(request)
        except queue.Full:
            raise OverloadedError(f"{self._waiting.maxsize} requests are waiting already") from None
        return request.response

    def _run(self) -> None:
        while (first := self._next or self._waiting.get()) is not None:
            self._next = None
            batch = self._gather(first)
            # From here on a request cannot be cancelled.
            if wanted := [r for r in batch if r.response.set_running_or_notify_cancel()]:
                self._answer(wanted)

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
        self._on_call(sum(request.rows for request in batch))
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


@dataclass
class ServedModel:
    name: str
    version: int
    signatures: Mapping[str, Signature]
    max_rows: int = 64
    wait_seconds: float = 0.0
    batchers: dict[str, Batcher] = field(default_factory=dict)
    on_call: Callable[[int], None] = lambda rows: None
    """Called with the number of rows before each call of the model."""

    @property
    def waiting(self) -> int:
        """About how many requests wait for the model."""
        return sum(batcher.waiting for batcher in self.batchers.values())

    def start(self) -> None:
        for name, signature in self.signatures.items():
            rows, wait = self.max_rows if _can_split(signature) else 1, self.wait_seconds
            self.batchers[name] = Batcher(
                signature.predict, max_rows=rows, wait_seconds=wait, on_call=self.on_call
            )
            self.batchers[name].start()

    def stop(self) -> None:
        for batcher in self.batchers.values():
            batcher.stop()

    def submit(self, request: PredictRequest) -> "Future[NamedArrays]":
        return self.batchers[request.signature].submit(request.arrays, request.rows)


def _can_split(signature: Signature) -> bool:
    """Whether every output may have a row for each row of the inputs."""
    return not any(spec.shape[:1].is_fully_defined() for spec in signature.outputs.values())
