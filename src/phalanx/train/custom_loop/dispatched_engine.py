"""A step of the user's own on the workers of a cluster with parameter servers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.errors import DataError
from phalanx.train.custom_loop.custom_step import CustomStep, Function, call_step
from phalanx.train.engines.base import Progress
from phalanx.train.runtime.background_calls import call_in_background
from phalanx.train.runtime.ps_cluster import ParameterServerCluster, fetch

_POLL_SECONDS = 1.0
# While a worker runs one step, its next one is already there.
_AHEAD = 2


class DispatchedEngine:
    """Hands a step to whichever worker is free; variables are updated on the ps as it says."""

    def __init__(
        self,
        ps_cluster: ParameterServerCluster,
        step: CustomStep,
        has_data: bool,
    ) -> None:
        self._ps_cluster = ps_cluster
        self._coordinator = ps_cluster.coordinator
        self._step = step
        self._has_data = has_data
        self._workers = len(ps_cluster.trainers)
        self._iterator: Any = None
        self._function: Function | None = None
        self._traced: dict[Function, Any] = {}
        self._under_way: deque[Future[Any]] = deque()
        self._longest = 0.0
        self.weights: Any = step.variables

    def use(self, function: Function) -> None:
        """The step that `advance` hands out."""
        self._function = function
        if function not in self._traced:
            self._traced[function] = tf.function(self._make_remote(function))

    def begin(self, step: int, skip: int) -> None:
        """Fill the parameter servers, open the data on every worker."""
        self._step.variables.push()
        if self._has_data:
            self._iterator = self._ps_cluster.open_remote(skip // self._workers, None)

    def advance(self, step: int, due: int, limit: int) -> Progress:
        """Keep every worker busy; come back with the step that ends first."""
        assert self._function is not None
        ahead = min(_AHEAD * self._workers, limit - step)
        while len(self._under_way) < ahead:
            arguments = () if self._iterator is None else (self._iterator,)
            with self._step.variables.forbid():
                scheduled = self._coordinator.schedule(self._traced[self._function], args=arguments)
            self._under_way.append(call_in_background(fetch, scheduled))
        if not self._under_way:
            return Progress(0, np.zeros([self._step.report_size]))
        return Progress(1, self._fetch())

    def rewind(self) -> None:
        """Data is repeated: it never ends."""

    def settle(self) -> Progress:
        """Let all steps under way end."""
        steps, report = len(self._under_way), np.zeros([self._step.report_size])
        while self._under_way:
            report = report + self._fetch()
        return Progress(steps, report)

    def pull(self) -> Progress:
        """Let all steps under way end first, so that what is saved belongs together."""
        progress = self.settle()
        self._step.variables.pull()
        return progress

    def evaluate(self, limit: int | None, notify: Callable[[int], None]) -> Any:
        """Who writes the step evaluates too."""
        raise NotImplementedError

    def is_interrupted(self) -> bool:
        """Whether another task was asked to end."""
        return self._ps_cluster.is_interrupted()

    def agree_to_stop(self, wants_to: bool) -> bool:
        """The chief decides."""
        return wants_to

    def finish(self, error: BaseException | None) -> None:
        """Nothing is under way after a good end; after a bad one nobody waits for it."""

    def _fetch(self) -> Any:
        step, asked = self._under_way.popleft(), time.monotonic()
        while True:
            try:
                report = np.asarray(step.result(timeout=_POLL_SECONDS), np.float64)
                self._longest = max(self._longest, time.monotonic() - asked)
                return report
            except FutureTimeoutError:
                self._ps_cluster.check_workers(asked, self._longest)
            except tf.errors.OutOfRangeError:
                raise DataError("the data of session.dataset(...) is empty on a worker") from None

    def _make_remote(self, function: Function) -> Function:
        strategy = self._coordinator.strategy

        def on_worker(batch: Any = None) -> Any:
            return self._step.report(call_step(function, batch), batch)

        def run(iterator: Any = None) -> Any:
            arguments = () if iterator is None else (next(iterator),)
            reports = strategy.run(on_worker, args=arguments)
            return strategy.reduce(tf.distribute.ReduceOp.SUM, reports, axis=None)

        return run
