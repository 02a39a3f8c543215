"""A step of the user's own on every replica of a strategy: one process, or many in step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.errors import DataError, Interrupted
from phalanx.train.custom_loop.custom_step import CustomStep, Function, Variables, call_step
from phalanx.train.engines.base import Progress
from phalanx.train.engines.reduction import Reduction
from phalanx.train.runtime.task_data import repeat_and_skip


class ReplicatedEngine:
    """Runs one step a call, in every process at the same time. Nobody leads: all agree."""

    def __init__(
        self,
        strategy: Any,
        step: CustomStep,
        make_data: Callable[[], Any] | None,
        *,
        hosts: int = 1,
        is_leader: bool = True,
        is_asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._strategy = strategy
        self._step = step
        self._make_data = make_data
        self._hosts = hosts
        self._is_leader = is_leader
        self._is_asked_to_stop = is_asked_to_stop
        self._interrupted = False
        self._iterator: Any = None
        self._function: Function | None = None
        self._traced: dict[Function, Function] = {}
        self._agree_function = tf.function(Reduction(strategy, hosts).sum_of_hosts)
        self.weights: Any = step.variables

    def use(self, function: Function) -> None:
        """The step that `advance` runs."""
        self._function = function
        if function not in self._traced:
            self._traced[function] = self._trace(function)

    def begin(self, step: int, skip: int) -> None:
        """Give every process the chief's values, and open the data."""
        variables: Variables = self._step.variables
        for copy in variables.copies.values():
            copy.assign(self._share(copy.numpy()))
        variables.push()
        if self._make_data is not None:
            made = self._strategy.distribute_datasets_from_function(lambda _: self._open(skip))
            self._step.element_spec = made.element_spec
            self._iterator = iter(made)

    def _open(self, skip: int) -> Any:
        assert self._make_data is not None
        return repeat_and_skip(self._make_data(), None, skip)

    def advance(self, step: int, due: int, limit: int) -> Progress:
        """One step."""
        assert self._function is not None
        if step >= limit:
            return Progress(0, np.zeros([self._step.report_size]))
        try:
            with self._step.variables.forbid():
                report = self._traced[self._function](self._iterator)
        except (tf.errors.OutOfRangeError, StopIteration):
            raise DataError("the data of session.dataset(...) is empty") from None
        return Progress(1, report.numpy().astype(np.float64))

    def rewind(self) -> None:
        """Data is repeated: it never ends."""

    def settle(self) -> None:
        """Nothing is ever under way."""

    def pull(self) -> None:
        """All replicas are equal."""
        self._step.variables.pull()

    def evaluate(self, limit: int | None, notify: Callable[[int], None]) -> Any:
        """Who writes the step evaluates too."""
        raise NotImplementedError

    def is_interrupted(self) -> bool:
        """Whether any task was asked to stop when all last agreed."""
        return self._interrupted

    def agree_to_stop(self, wants_to: bool) -> bool:
        """Whether any task wants to stop: the same answer in all of them."""
        if self._hosts == 1:
            return wants_to
        vote = [float(wants_to), float(self._is_asked_to_stop())]
        stops, terminated = self._sum(np.array(vote, np.float32))
        self._interrupted = bool(terminated)
        return bool(stops)

    def agree_on_step(self, step: int) -> int:
        """The chief's."""
        return int(self._share(np.array(step, np.int64)))

    def finish(self, error: BaseException | None) -> None:
        """Nobody leaves while the chief still saves."""
        if error is None or isinstance(error, Interrupted):
            self._share(np.array(0.0, np.float32))

    def _share(self, value: Any) -> Any:
        """The chief's value."""
        return self._sum(value if self._is_leader else np.zeros_like(value))

    def _sum(self, value: Any) -> Any:
        if self._hosts == 1:
            return value
        return self._agree_function(tf.constant(value)).numpy()

    def _trace(self, function: Function) -> Function:
        if isinstance(function, tf.types.experimental.PolymorphicFunction):
            return lambda iterator: self._run_distributed(function, iterator)

        def on_replica(batch: Any = None) -> Any:
            return self._step.report(call_step(function, batch), batch)

        def run(iterator: Any) -> Any:
            arguments = () if iterator is None else (next(iterator),)
            reports = self._strategy.run(on_replica, args=arguments)
            return self._strategy.reduce(tf.distribute.ReduceOp.SUM, reports, axis=None)

        return tf.function(run)  # type: ignore[no-any-return]

    def _run_distributed(self, function: Function, iterator: Any) -> Any:
        """A function that distributes itself takes what a strategy gives, and returns the mean."""
        batch = None if iterator is None else next(iterator)
        returned = call_step(function, batch)
        if batch is None:
            return self._step.report(returned, None)
        first = tf.nest.flatten(batch)[0]
        lengths = [len(part) for part in self._strategy.experimental_local_results(first)]
        rows = tf.zeros([sum(lengths) * self._hosts])
        return self._step.report(returned, rows)
