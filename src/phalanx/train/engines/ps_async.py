"""Asynchronous training on parameter servers: each trainer applies its gradients immediately."""

import contextlib
import logging
import queue
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import tensorflow as tf

from phalanx.errors import DataError
from phalanx.train.autograph import unconverted
from phalanx.train.engines.base import Notify, Progress
from phalanx.train.engines.numbered_updates import NumberedUpdates
from phalanx.train.engines.ps_base import ParameterServerEngine
from phalanx.train.engines.shard_positions import ShardPositions
from phalanx.train.runtime.background_calls import call_in_background
from phalanx.train.runtime.ps_cluster import CHIEF_DEVICE, NUMBER_SPEC, DataWindow, fetch
from phalanx.train.step.state_updates import ComputeUpdates, make_updates
from phalanx.train.step.step_times import StepTimes, read_clock
from phalanx.train.types import (
    Array,
    Batch,
    DatasetIterator,
    ElementSpec,
    Tensor,
    TFFunction,
)
from phalanx.train.variables.device_variables import DeviceVariables

LOG = logging.getLogger("phalanx")

_POLL_SECONDS = 1.0
# How long calls may take to fail when a parameter server is lost.
_END_SECONDS = 10.0
# A model with fewer dense bytes has short steps, and a graph that is small enough to unroll,
# unless it has growing tables.
_SMALL_BYTES = 2**18
_UNROLLED_STEPS = 4


@dataclass(frozen=True)
class DispatchResult:
    """The outcome of the steps that were dispatched to one trainer."""

    requested: int
    done: int
    report: Array
    ended: bool
    trainer: int
    seconds: float
    is_chief: bool
    times: StepTimes


class AsyncPSEngine(ParameterServerEngine):
    """Dispatches a few steps at a time to each trainer that is free.

    Parameter servers apply each gradient immediately, under a lock, so that no update is lost,
    whatever the optimizer does with intermediate values.
    """

    def _build(self, element_spec: ElementSpec) -> None:
        # Each trainer repeats its shard by itself, unless the session must see each epoch end.
        self._epochs = 1 if self._pauses else self._ps_cluster.config.epochs
        self._compute: ComputeUpdates = self._compile(make_updates(self._make_compute()))
        self._updates = NumberedUpdates.place(
            self.variables, len(self._ps_cluster.trainers), self._replicas.copies
        )
        # Several batches can be read at once only from data that does not end.
        is_short = (
            self._epochs is None
            and self.variables.dense_bytes() < _SMALL_BYTES
            and not self.variables.growing_buffers()
        )
        self._unrolled = (_UNROLLED_STEPS, 1) if is_short else (1,)
        batch_spec, fixed_spec = self._split_element(element_spec)
        pair = (NUMBER_SPEC, batch_spec)
        numbered = (pair, fixed_spec) if self._fixed else pair
        # The coordinator would trace inside the strategy's scope, where Keras aggregates gradients.
        self._train_remote = tf.function(self._train_on_worker).get_concrete_function(
            tf.data.IteratorSpec(numbered),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([], tf.int64),
        )
        self._train_local = tf.function(self._train_steps)
        self._evaluate_shards: list[TFFunction] = []
        self._results: queue.SimpleQueue[DispatchResult | BaseException] = queue.SimpleQueue()
        self._remote_iterator: DatasetIterator = None
        self._local_iterator: DatasetIterator = None
        self._interrupted = False
        # When a worker last finished something; None while no worker has anything to do.
        self._last_heard: float | None = None
        self._last_checked = self._longest = 0.0
        self._in_flight = 0
        self._chief_is_busy = False
        self._dispatched = 0
        self._uncounted = 0
        self._unreported: list[DispatchResult] = []
        self._ended: set[int] = set()
        self._worked: set[int] = set()
        self._steps_of: Counter[int] = Counter()
        self._times = [StepTimes() for _ in self._ps_cluster.trainers]
        self._positions = ShardPositions(
            len(self._ps_cluster.trainers), self._ps_cluster.is_data_served
        )
        self._ps_cluster.continue_data(self._positions.count_used)

    def begin(self, step: int, skip: int, passes: int = 0, shards: Sequence[int] = ()) -> None:
        self.resume(step)
        self._positions.restore(passes, skip, shards)
        if skip or any(self._positions.skips):
            # A trainer whose shard was read to its end before the restart may have nothing left.
            self._worked = set(range(len(self._ps_cluster.trainers)))
        self._open()
        self._has_begun = True

    def read_shards(self) -> Sequence[int]:
        return self._positions.save(self._updates.read_expected(self._lost))

    def resume(self, step: int) -> None:
        self.push()
        self._updates.counter.assign(step)
        self._dispatched = step
        self._uncounted = 0

    def count_updates(self) -> int:
        """Return how many updates the parameter servers have applied."""
        return int(self._updates.counter.numpy())

    def advance(self, step: int, due: int, limit: int) -> Progress:
        """Keep every trainer busy; return the steps that were completed meanwhile.

        If a hook is due at every step, return them one at a time, and dispatch no further step to
        the same trainer before the hook has run: it may change the weights.
        """
        one_by_one = due == step + 1
        self._dispatch(limit, one_by_one)
        if not self._unreported and self._in_flight:
            self._unreported.append(self._take())
        if not one_by_one:
            while not self._results.empty():
                self._unreported.append(self._take())
            self._dispatch(limit)
        return self._report_progress()

    def rewind(self) -> None:
        """Open the data again. Data that repeats without end only ends if it is empty."""
        self._ended.clear()
        self._positions.rewind()
        self._open()

    def settle(self) -> Progress:
        while self._in_flight:
            self._unreported.append(self._take())
        self._last_heard = None
        self._report_losses()
        return self._report_progress()

    def _report_losses(self) -> None:
        """Log how many updates are not counted as steps, and what was computed twice."""
        uncounted = self.count_updates() - self._dispatched
        if uncounted > self._uncounted:
            LOG.warning(
                "%d updates are not counted as steps yet: they were applied, and their worker was "
                "lost before it said so",
                uncounted,
            )
        self._uncounted = uncounted
        if skipped := self._updates.take_skipped():
            LOG.warning(
                "%d batches were computed twice, by a worker that is back, and applied once",
                skipped,
            )

    def pull(self) -> Progress:
        """Settle first, so that the values that are saved belong to the same step."""
        progress = self.settle()
        self.variables.pull()
        return progress

    def _end_calls(self, rescued: DeviceVariables, step: int) -> Progress:
        """Wait for the calls in flight, which fail without the lost server, or were answered.

        One that the coordinator has not begun yet waits for ever.
        """
        deadline = time.monotonic() + _END_SECONDS
        while self._in_flight and time.monotonic() < deadline:
            with contextlib.suppress(queue.Empty):
                result = self._results.get(timeout=_POLL_SECONDS)
                self._in_flight -= 1
                if isinstance(result, DispatchResult):
                    self._unreported.append(result)
        return self._report_progress()

    def evaluate(self, notify: Notify, batches_per_call: int | None = None) -> Array:
        """Evaluate on all hosts; the session has settled before."""
        if not self._shared_evaluation.is_shared():
            return self._shared_evaluation.evaluate_on_chief(notify, batches_per_call)
        if not self._evaluate_shards:
            self._evaluate_shards = self._shared_evaluation.trace_shards()
        schedule = self._ps_cluster.coordinator.schedule
        values = [schedule(evaluate_shard) for evaluate_shard in self._evaluate_shards]
        others = [call_in_background(fetch, value) for value in values]
        return self._shared_evaluation.evaluate(others, notify, batches_per_call)

    def is_interrupted(self) -> bool:
        return self._interrupted or super().is_interrupted()

    @property
    def calls_in_flight(self) -> int:
        return self._in_flight

    def trainer_steps(self) -> Mapping[str, int]:
        trainers = enumerate(self._ps_cluster.trainers)
        return {str(task): self._steps_of[number] for number, task in trainers}

    def step_times(self) -> Mapping[str, StepTimes]:
        return dict(zip(map(str, self._ps_cluster.trainers), self._times, strict=True))

    def finish(self, error: BaseException | None) -> None:
        """Release the data. After an error, steps in flight are not waited for."""
        self._local_iterator = None

    def _open(self) -> None:
        positions = self._positions
        positions.open()
        window = DataWindow(
            positions.passes, 0, self._epochs, skips=positions.skips, first=positions.first_number,
            is_served=positions.is_served,
        )  # fmt: skip
        self._remote_iterator = self._ps_cluster.open_remote(window, self._fixed)
        if self._ps_cluster.chief_trains:
            self._local_iterator = self._ps_cluster.open_local(window, self._fixed)

    def _dispatch(self, limit: int, one_by_one: bool = False) -> None:
        """Give every trainer steps to do, and every worker more of them to begin with at once."""
        max_steps, per_worker = (1, 1) if one_by_one else (self._steps_per_call.steps, 2)
        chief_trains = self._ps_cluster.chief_trains
        workers = len(self._ps_cluster.trainers) - chief_trains
        chief_has_data = chief_trains and 0 not in self._ended
        while self._dispatched < limit:
            to_chief = chief_has_data and not self._chief_is_busy
            busy_workers = self._in_flight - self._chief_is_busy
            idle = all(worker + chief_trains in self._ended for worker in range(workers))
            if not to_chief and (idle or busy_workers >= per_worker * workers):
                return
            fair = -(-(limit - self._dispatched) // (2 * len(self._ps_cluster.trainers)))
            steps = max(1, min(max_steps, fair, limit - self._dispatched))
            started = time.perf_counter()
            arguments = (tf.constant(steps), tf.constant(self._dispatched, tf.int64))
            self._dispatched += steps
            self._in_flight += 1
            run: Callable[[], tuple[Array, ...]]
            if to_chief:
                self._chief_is_busy = True
                run = partial(self._run_local, arguments)
            else:
                self._last_heard = self._last_heard or time.monotonic()
                value = self._ps_cluster.coordinator.schedule(
                    self._train_remote, args=(self._remote_iterator, *arguments)
                )
                run = partial(fetch, value)
            call_in_background(self._collect, run, steps, started, to_chief)

    def _run_local(self, arguments: tuple[Tensor, Tensor]) -> tuple[Array, ...]:
        with tf.device(CHIEF_DEVICE):
            results = self._train_local(self._local_iterator, *arguments, tf.constant(0, tf.int64))
        return (*(result.numpy() for result in results), np.array(-1))

    def _collect(
        self, run: Callable[[], tuple[Array, ...]], steps: int, started: float, is_chief: bool
    ) -> None:
        """Wait for the steps of one trainer, and queue their result, or the error."""
        try:
            done, report, more, times, next_number, worker = run()
            seconds = time.perf_counter() - started
            result = DispatchResult(
                requested=steps,
                done=int(done),
                report=np.asarray(report, np.float64),
                ended=not bool(more),
                trainer=int(worker) + self._ps_cluster.chief_trains,
                seconds=seconds,
                is_chief=is_chief,
                times=StepTimes.split(*map(float, times)),
            )
            self._positions.note_used(result.trainer, int(next_number))
            self._results.put(result)
        except BaseException as error:
            self._results.put(error)

    def _take(self) -> DispatchResult:
        while True:
            self._check_workers()
            try:
                result = self._results.get(timeout=_POLL_SECONDS)
                break
            except queue.Empty:
                continue
        if isinstance(result, BaseException):
            raise result
        self._in_flight -= 1
        if result.is_chief:
            self._chief_is_busy = False
        elif result.done or result.trainer not in self._ended:
            self._last_heard = time.monotonic()
            self._longest = max(self._longest, result.seconds)
        self._dispatched -= result.requested - result.done
        if result.ended:
            self._ended.add(result.trainer)
            if not result.done:
                time.sleep(0.02)
        return result

    def _check_workers(self) -> None:
        """Raise if a worker has failed, or if all workers are lost.

        The results of the chief, and of workers whose data has ended, are no sign of life.
        """
        now = time.monotonic()
        if now - self._last_checked < _POLL_SECONDS:
            return
        self._last_checked = now
        self._interrupted = self.is_interrupted()
        if self._last_heard is not None and self._in_flight > self._chief_is_busy:
            self._ps_cluster.check_workers(self._last_heard, self._longest)

    def _report_progress(self) -> Progress:
        """Return what was done since the last report."""
        results, self._unreported = self._unreported, []
        for result in results:
            self._record(result)
        report = np.sum([np.zeros([self._step.report_size]), *(r.report for r in results)], axis=0)
        has_ended = len(self._ended) == len(self._ps_cluster.trainers) and not self._in_flight
        return Progress(sum(r.done for r in results), report, has_ended, self._epochs or 1)

    def _record(self, result: DispatchResult) -> None:
        self._steps_of[result.trainer] += result.done
        self._times[result.trainer] += result.times
        if result.done:
            self._worked.add(result.trainer)
            # A worker has two dispatches in its queue, so each takes half of the time.
            seconds = result.seconds if result.is_chief else result.seconds / 2
            self._steps_per_call.record(result.done, seconds)
        elif result.trainer not in self._worked and self._ps_cluster.topology.divides_evenly:
            trainers = self._ps_cluster.trainers
            raise DataError(
                f"train_data gave no batch for {trainers[result.trainer]} (shard {result.trainer} "
                f"of {len(trainers)}): the data is empty, or has fewer files than there are "
                "trainers; shard by examples, or start fewer workers"
            )

    def _train_on_worker(
        self, iterator: DatasetIterator, steps: Tensor, first: Tensor
    ) -> tuple[Tensor, ...]:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        trainer = tf.cast(worker, tf.int64) + int(self._ps_cluster.chief_trains)
        return (*self._train_steps(iterator, steps, first, trainer), worker)

    def _train_steps(
        self, iterator: DatasetIterator, steps: Tensor, first: Tensor, trainer: Tensor
    ) -> tuple[Tensor, ...]:
        """Run steps of one round trip each: send the gradients, receive the updated weights.

        The last results are three times in seconds: of all steps, of waiting for batches, and of
        waiting for the parameter servers; and the number of the next batch, 0 without a step.
        """
        begun = read_clock()
        done, next_number = tf.constant(0), tf.constant(0, tf.int64)
        total = tf.zeros([self._step.report_size])
        optional = iterator.get_next_as_optional()
        more = optional.has_value()
        dense, state = self.variables.read_dense(), self.variables.read_changing_state()
        now = read_clock(begun, [tf.identity(value) for value in (*dense, *state)])
        servers = now - begun
        data = read_clock(now, more) - now
        # Each loop iteration costs a message to the ps: short steps are unrolled.
        for size in self._unrolled:
            while more and done <= steps - size:
                element = optional.get_value()
                for number in range(size):
                    if number:
                        element = iterator.get_next()
                        data += read_clock(now, element) - now
                    step = first + tf.cast(done, tf.int64)
                    dense, state, report, computed, now = self._take_step(
                        dense, state, element, step, trainer
                    )
                    next_number = self._split_element(element)[0][0] + 1
                    servers += now - computed
                    total += report
                    done += 1
                # A condition around the step instead of this one would be sent to the ps too.
                if done < steps:
                    optional = iterator.get_next_as_optional()
                    more = optional.has_value()
                data += read_clock(now, more) - now
        times = tf.stack([read_clock(now, total) - begun, data, servers])
        return done, total, more, times, next_number

    @unconverted
    def _take_step(
        self,
        dense: list[Tensor],
        changing: list[Tensor],
        element: Batch,
        step: Tensor,
        trainer: Tensor,
    ) -> tuple[list[Tensor], list[Tensor], Tensor, Tensor, Tensor]:
        """Take one step.

        Returns the dense buffers and the changing state after it, its report, and when the
        gradients were computed and the buffers arrived.
        """
        (number, batch), fixed = self._split_element(element)
        state = self.variables.join_state(fixed, changing)
        result, updates = self._compute(
            self.variables, self.variables.add_sparse(dense), state, batch, 0, step
        )
        computed = read_clock(result.gradients, result.report)
        dense, changed = self._updates.apply(
            result.gradients, updates, result.sightings, tf.stack([trainer, number])
        )
        # Copies here: the buffers are sent to this task anyway.
        arrived = read_clock(computed, [tf.identity(value) for value in (*dense, *changed)])
        return dense, changed, result.report, computed, arrived
