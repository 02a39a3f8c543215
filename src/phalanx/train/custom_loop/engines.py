"""Engines for steps that the user writes: on every replica of a strategy, or on ps workers."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

import numpy as np
import tensorflow as tf

from phalanx.errors import DataError, Interrupted
from phalanx.train.custom_loop.custom_step import CustomStep, CustomVariables, call_step
from phalanx.train.engines.base import Engine, Progress
from phalanx.train.engines.reduction import Reduction
from phalanx.train.runtime.background_calls import call_in_background
from phalanx.train.runtime.ps_cluster import DataWindow, ParameterServerCluster, fetch
from phalanx.train.runtime.task_data import repeat_and_skip
from phalanx.train.types import (
    Array,
    Batch,
    Dataset,
    DatasetIterator,
    Tensor,
    TFStrategy,
    UserFunction,
)

_POLL_SECONDS = 1.0
# While a worker runs one step, the next one waits in its queue.
_STEPS_PER_WORKER = 2


class CustomEngine(Engine):
    """An engine that runs a step of the user, traced once."""

    def __init__(self, tf_strategy: TFStrategy, step: CustomStep) -> None:
        self._strategy = tf_strategy
        self._step = step
        self._iterator: DatasetIterator = None
        self._function: UserFunction | None = None
        self._traced: dict[UserFunction, UserFunction] = {}
        self.variables: CustomVariables = step.variables

    def use(self, function: UserFunction) -> None:
        """Set the step that `advance` runs."""
        self._function = self._traced.get(function) or self._trace(function)
        self._traced[function] = self._function

    def agree_to_stop(self, wants_to: bool) -> bool:
        """Return whether any task that runs the loop wants to stop: the same answer in all."""
        return wants_to

    def rewind(self) -> None:
        """Do nothing: the data repeats, so it never ends."""

    def push(self) -> None:
        self.variables.push()

    def set_learning_rate(self, value: float) -> None:
        self.variables.set_learning_rate(value)

    def finalize(self) -> bool:
        """Leave the weights as the user's step made them."""
        return False

    def _trace(self, function: UserFunction) -> UserFunction:
        def on_replica(batch: Batch = None) -> Tensor:
            return self._step.report(call_step(function, batch), batch)

        def run(iterator: DatasetIterator = None) -> Tensor:
            arguments = () if iterator is None else (next(iterator),)
            reports = self._strategy.run(on_replica, args=arguments)
            return self._strategy.reduce(tf.distribute.ReduceOp.SUM, reports, axis=None)

        return tf.function(run)  # type: ignore[no-any-return]


class ReplicatedEngine(CustomEngine):
    """Runs one step per call on every replica, in all processes at the same time."""

    def __init__(
        self,
        tf_strategy: TFStrategy,
        step: CustomStep,
        make_data: Callable[[], Dataset] | None,
        *,
        hosts: int = 1,
        is_chief: bool = True,
        is_asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(tf_strategy, step)
        self._make_data = make_data
        self._hosts = hosts
        self._is_chief = is_chief
        self._is_asked_to_stop = is_asked_to_stop
        self._interrupted = False
        self._must_push = False
        self._sum_function = tf.function(Reduction(tf_strategy, hosts).sum_of_hosts)

    def begin(self, step: int, skip: int, passes: int = 0, shards: Sequence[int] = ()) -> None:
        """Give every process the chief's values, and open the data."""
        self._push()
        if (make_data := self._make_data) is not None:
            data = self._strategy.distribute_datasets_from_function(
                lambda _: repeat_and_skip(make_data(), None, skip)
            )
            self._step.element_spec = data.element_spec
            self._iterator = iter(data)

    def advance(self, step: int, due: int, limit: int) -> Progress:
        assert self._function is not None
        if step >= limit:
            return Progress(0, np.zeros([self._step.report_size]))
        try:
            with self.variables.forbid_new():
                report = self._function(self._iterator)
        except (tf.errors.OutOfRangeError, StopIteration):
            raise DataError("the data of session.dataset(...) is empty") from None
        return Progress(1, report.numpy().astype(np.float64))

    def pull(self) -> None:
        self.variables.pull()

    def push(self) -> None:
        """Assign the copies to the variables; on several hosts, when these next agree."""
        if self._hosts == 1:
            self.variables.push()
        else:
            self._must_push = self._is_chief

    def _push(self) -> None:
        for copy in self.variables.copies.values():
            copy.assign(self._broadcast(copy.numpy()))
        self.variables.push()

    def is_interrupted(self) -> bool:
        """Whether any task had received SIGTERM when all last agreed."""
        return self._interrupted

    def agree_to_stop(self, wants_to: bool) -> bool:
        if self._hosts == 1:
            return wants_to
        vote = [float(wants_to), float(self._is_asked_to_stop()), float(self._must_push)]
        stops, terminated, pushes = self._sum_of_hosts(np.array(vote, np.float32))
        self._interrupted = bool(terminated)
        if pushes:
            self._must_push = False
            self._push()
        return bool(stops)

    def broadcast_number(self, number: int) -> int:
        """Return the chief's number in every process."""
        return int(self._broadcast(np.array(number, np.int64)))

    def finish(self, error: BaseException | None) -> None:
        """Wait for all processes, so that none leaves while the chief still saves."""
        if error is None or isinstance(error, Interrupted):
            self._broadcast(np.array(0.0, np.float32))

    def _broadcast(self, value: Array) -> Array:
        return self._sum_of_hosts(value if self._is_chief else np.zeros_like(value))

    def _sum_of_hosts(self, value: Array) -> Array:
        if self._hosts == 1:
            return value
        return np.asarray(self._sum_function(tf.constant(value)).numpy())

    def _trace(self, function: UserFunction) -> UserFunction:
        if isinstance(function, tf.types.experimental.PolymorphicFunction):
            return lambda iterator: self._run_distributed(function, iterator)
        return super()._trace(function)

    def _run_distributed(self, function: UserFunction, iterator: DatasetIterator) -> Tensor:
        """Run a function that distributes itself: it takes per-replica batches, returns means."""
        batch = None if iterator is None else next(iterator)
        returned = call_step(function, batch)
        if batch is None:
            return self._step.report(returned, None)
        first = tf.nest.flatten(batch)[0]
        lengths = [len(part) for part in self._strategy.experimental_local_results(first)]
        return self._step.report(returned, tf.zeros([sum(lengths) * self._hosts]))


class DispatchedEngine(CustomEngine):
    """Dispatches each step to a free worker; the step updates the variables on the ps."""

    def __init__(
        self, ps_cluster: ParameterServerCluster, step: CustomStep, has_data: bool
    ) -> None:
        super().__init__(ps_cluster.coordinator.strategy, step)
        self._ps_cluster = ps_cluster
        self._has_data = has_data
        self._workers = len(ps_cluster.trainers)
        self._in_flight: deque[Future[Array]] = deque()
        self._longest = 0.0

    def begin(self, step: int, skip: int, passes: int = 0, shards: Sequence[int] = ()) -> None:
        self.variables.push()
        if self._has_data:
            self._iterator = self._ps_cluster.open_remote(DataWindow(0, skip // self._workers))

    def advance(self, step: int, due: int, limit: int) -> Progress:
        """Keep every worker busy; return the oldest step in flight when it is done."""
        assert self._function is not None
        arguments = () if self._iterator is None else (self._iterator,)
        while len(self._in_flight) < min(_STEPS_PER_WORKER * self._workers, limit - step):
            with self.variables.forbid_new():
                value = self._ps_cluster.coordinator.schedule(self._function, args=arguments)
            self._in_flight.append(call_in_background(fetch, value))
        if not self._in_flight:
            return Progress(0, np.zeros([self._step.report_size]))
        return Progress(1, self._take())

    def settle(self) -> Progress:
        steps, report = len(self._in_flight), np.zeros([self._step.report_size])
        while self._in_flight:
            report = report + self._take()
        return Progress(steps, report)

    def pull(self) -> Progress:
        """Settle first, so that the values that are saved belong to the same step."""
        progress = self.settle()
        self.variables.pull()
        return progress

    def is_interrupted(self) -> bool:
        return self._ps_cluster.is_interrupted()

    def finish(self, error: BaseException | None) -> None:
        """Do nothing: after an error, steps in flight are not waited for."""

    def _take(self) -> Array:
        step, started = self._in_flight.popleft(), time.monotonic()
        while True:
            try:
                report = np.asarray(step.result(timeout=_POLL_SECONDS), np.float64)
                self._longest = max(self._longest, time.monotonic() - started)
                return report
            except FutureTimeoutError:
                self._ps_cluster.check_workers(started, self._longest)
            except tf.errors.OutOfRangeError:
                raise DataError("the data of session.dataset(...) is empty on a worker") from None
