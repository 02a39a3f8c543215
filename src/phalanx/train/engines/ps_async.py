"""Asynchronously on parameter servers: each trainer goes at its own pace."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.errors import DataError
from phalanx.train.engines.base import Progress
from phalanx.train.engines.steps_per_call import StepsPerCall
from phalanx.train.loop.evaluation import SharedEvaluation
from phalanx.train.runtime.background_calls import call_in_background
from phalanx.train.runtime.ps_cluster import CHIEF_DEVICE, ParameterServerCluster, fetch
from phalanx.train.step.accumulation import cut_batches
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.flat_layout import Tensor
from phalanx.train.variables.host_variables import HostVariables
from phalanx.train.variables.store import VariableStore, clip

_POLL_SECONDS = 1.0
# A model that reads fewer bytes a step makes short ones, and its graph is small enough to repeat.
_SMALL = 2**18
_STEPS_A_TURN = 4


@dataclass(frozen=True)
class Outcome:
    """What one dispatch to one trainer brought."""

    asked: int
    done: int
    report: Any
    ended: bool
    trainer: int
    seconds: float
    is_chief: bool


class AsyncPSEngine:
    """Hands out a few steps at a time to whoever is free; every update is made at once, on the ps.

    Gradients are applied on the parameter server under a lock, so that none is lost, whatever the
    optimizer does with the values in between.
    """

    def __init__(
        self,
        ps_cluster: ParameterServerCluster,
        step: StepFunction,
        host_variables: HostVariables,
        element_spec: Any,
        limits: dict[str, float | None],
    ) -> None:
        config = ps_cluster.config
        self._ps_cluster = ps_cluster
        self._step = step
        self._epochs = config.epochs
        self.weights = DeviceVariables.place(host_variables, ps_cluster.devices, limits)
        self._locks = []
        for device in ps_cluster.devices:
            with tf.device(device):
                self._locks.append(tf.CriticalSection())
        with tf.device(ps_cluster.devices[0]):
            self._counter = tf.Variable(0, dtype=tf.int64, trainable=False)
        compute = cut_batches(step, config.accumulate)
        self._compute = tf.function(compute, jit_compile=True) if config.xla else compute
        # Only data without an end can be taken several batches at a time.
        is_short = self._epochs is None and self.weights.whole_bytes() < _SMALL
        self._turns = (_STEPS_A_TURN, 1) if is_short else (1,)
        # Traced here: what the coordinator traces itself, it traces inside the strategy's scope,
        # where Keras would do what is our part.
        iterator = tf.data.IteratorSpec(element_spec)
        number = tf.TensorSpec([], tf.int32)
        first = tf.TensorSpec([], tf.int64)
        self._there = tf.function(self._train_there).get_concrete_function(iterator, number, first)
        self._here = tf.function(self._train_steps)
        self._shared_evaluation = SharedEvaluation(ps_cluster, step, self.weights)
        self._examine: Any = None
        self._steps_per_call = StepsPerCall(fixed=config.steps_per_call)
        self._outcomes: queue.SimpleQueue[Outcome | BaseException] = queue.SimpleQueue()
        self._remote: Any = None
        self._local: Any = None
        self._interrupted = False
        # When a worker last did something; not known while they have nothing to do.
        self._heard: float | None = None
        self._looked = self._longest = 0.0
        self._in_flight = 0
        self._chief_is_busy = False
        self._allotted = 0
        self._held: list[Outcome] = []
        self._ended: set[int] = set()
        self._worked: set[int] = set()

    def begin(self, step: int, skip: int) -> None:
        """Fill the parameter servers."""
        self.weights.push()
        self._counter.assign(step)
        self._allotted = step
        trainers = len(self._ps_cluster.trainers)
        if skip:
            # Whose share was read to its end before has nothing left to do, and is no mistake.
            self._worked = set(range(trainers))
        self._open(skip // trainers)

    def count_updates(self) -> int:
        """How many updates the parameter servers have seen."""
        return int(self._counter.numpy())

    def advance(self, step: int, due: int, limit: int) -> Progress:
        """Keep every trainer busy; come back with whatever was done meanwhile."""
        self._hand_out(limit)
        if not self._held and self._in_flight:
            self._held.append(self._take())
        while not self._outcomes.empty():
            self._held.append(self._take())
        self._hand_out(limit)
        return self._tell()

    def rewind(self) -> None:
        """Data that may be read again never ends here: to end is to be empty."""
        self._ended.clear()
        self._open(0)

    def settle(self) -> Progress:
        """Let all updates under way end."""
        while self._in_flight:
            self._held.append(self._take())
        self._heard = None
        return self._tell()

    def pull(self) -> Progress:
        """Let all updates under way end first, so that what is saved belongs together."""
        progress = self.settle()
        self.weights.pull()
        return progress

    def evaluate(self, limit: int | None, notify: Callable[[int], None]) -> Any:
        """On all hosts, with the weights as they are: nothing is under way."""
        if not self._shared_evaluation.is_shared():
            return self._shared_evaluation.evaluate_on_chief(notify)
        if self._examine is None:
            self._examine = tf.function(
                self._shared_evaluation.evaluate_remote
            ).get_concrete_function(tf.TensorSpec([], tf.int32))
        schedule = self._ps_cluster.coordinator.schedule
        values = [
            schedule(self._examine, args=(tf.constant(m),))
            for m in self._shared_evaluation.worker_shards
        ]
        others = [call_in_background(fetch, value) for value in values]
        return self._shared_evaluation.evaluate(others, notify)

    def is_interrupted(self) -> bool:
        """Whether another task was asked to end."""
        return self._interrupted or self._ps_cluster.is_interrupted()

    def finish(self, error: BaseException | None) -> None:
        """Nothing is under way after a good end; after a bad one nobody waits for it."""
        self._local = None

    def _open(self, skip: int) -> None:
        self._remote = self._ps_cluster.open_remote(skip, self._epochs)
        if self._ps_cluster.chief_trains:
            self._local = self._ps_cluster.open_local(skip, self._epochs)

    def _hand_out(self, limit: int) -> None:
        workers = len(self._ps_cluster.trainers) - self._ps_cluster.chief_trains
        chief = self._ps_cluster.chief_trains and 0 not in self._ended
        while self._allotted < limit:
            to_chief = chief and not self._chief_is_busy
            busy_workers = self._in_flight - self._chief_is_busy
            idle = all(i + self._ps_cluster.chief_trains in self._ended for i in range(workers))
            if not to_chief and (idle or busy_workers >= 2 * workers):
                return
            fair = -(-(limit - self._allotted) // (2 * len(self._ps_cluster.trainers)))
            steps = max(1, min(self._steps_per_call.steps, fair, limit - self._allotted))
            started = time.perf_counter()
            arguments = (tf.constant(steps), tf.constant(self._allotted, tf.int64))
            self._allotted += steps
            self._in_flight += 1
            if to_chief:
                self._chief_is_busy = True
                call_in_background(self._run_here, arguments, steps, started)
            else:
                self._heard = self._heard or time.monotonic()
                value = self._ps_cluster.coordinator.schedule(
                    self._there, args=(self._remote, *arguments)
                )
                call_in_background(self._wait_for, value, steps, started)

    def _wait_for(self, value: Any, steps: int, started: float) -> None:
        try:
            done, report, more, trainer = fetch(value)
            number = int(trainer) + self._ps_cluster.chief_trains
            self._put(steps, done, report, more, number, started, is_chief=False)
        except BaseException as error:
            self._outcomes.put(error)

    def _run_here(self, arguments: Any, steps: int, started: float) -> None:
        try:
            with tf.device(CHIEF_DEVICE):
                done, report, more = self._here(self._local, *arguments)
            self._put(steps, done.numpy(), report.numpy(), more, 0, started, is_chief=True)
        except BaseException as error:
            self._outcomes.put(error)

    def _put(
        self, steps: int, done: Any, report: Any, more: Any, number: int, started: float,
        *, is_chief: bool,
    ) -> None:  # fmt: skip
        seconds = time.perf_counter() - started
        self._outcomes.put(
            Outcome(
                steps, int(done), np.asarray(report, np.float64), not bool(more), number, seconds,
                is_chief,
            )
        )  # fmt: skip

    def _take(self) -> Outcome:
        while True:
            self._look_after_workers()
            try:
                outcome = self._outcomes.get(timeout=_POLL_SECONDS)
                break
            except queue.Empty:
                continue
        if isinstance(outcome, BaseException):
            raise outcome
        self._in_flight -= 1
        if outcome.is_chief:
            self._chief_is_busy = False
        elif outcome.done or outcome.trainer not in self._ended:
            self._heard = time.monotonic()
            self._longest = max(self._longest, outcome.seconds)
        self._allotted -= outcome.asked - outcome.done
        if outcome.ended:
            self._ended.add(outcome.trainer)
            if not outcome.done:
                time.sleep(0.02)
        return outcome

    def _look_after_workers(self) -> None:
        """A worker that failed brings nothing, but has said why; one that is lost says nothing.

        The chief's own steps go on without them, and so do calls to those whose data has ended.
        """
        now = time.monotonic()
        if now - self._looked < _POLL_SECONDS:
            return
        self._looked = now
        self._interrupted = self._interrupted or self._ps_cluster.is_interrupted()
        if self._heard is not None and self._in_flight > self._chief_is_busy:
            self._ps_cluster.check_workers(self._heard, self._longest)

    def _tell(self) -> Progress:
        """What was done since this was last asked."""
        outcomes, self._held = self._held, []
        self._note(outcomes)
        report = np.sum([np.zeros([self._step.report_size]), *(o.report for o in outcomes)], axis=0)
        has_ended = len(self._ended) == len(self._ps_cluster.trainers) and not self._in_flight
        return Progress(sum(o.done for o in outcomes), report, has_ended, self._epochs or 1)

    def _note(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.done:
                self._worked.add(outcome.trainer)
                # A worker has two dispatches in its queue, so each takes half of the time.
                seconds = outcome.seconds if outcome.is_chief else outcome.seconds / 2
                self._steps_per_call.record(outcome.done, seconds)
            elif outcome.trainer not in self._worked:
                task = self._ps_cluster.trainers[outcome.trainer]
                raise DataError(
                    f"train_data gave no batch for {task} (shard {outcome.trainer} of "
                    f"{len(self._ps_cluster.trainers)}): the data is empty, or has fewer files "
                    "than there are trainers; shard by examples, or start fewer workers"
                )

    def _train_there(self, iterator: Any, steps: Tensor, first: Tensor) -> tuple[Tensor, ...]:
        worker = tf.distribute.coordinator.experimental_get_current_worker_index()
        return (*self._train_steps(iterator, steps, first), worker)

    def _train_steps(self, iterator: Any, steps: Tensor, first: Tensor) -> tuple[Tensor, ...]:
        """Each step costs one round trip: gradients there, the weights they made back."""
        done = tf.constant(0)
        total = tf.zeros([self._step.report_size])
        optional = iterator.get_next_as_optional()
        more = optional.has_value()
        # What is looked up is not carried from step to step: it is never read whole.
        pieces, state = self.weights.read_whole(), self.weights.read_state()
        # The ps hear of each turn of a loop: where steps are short, one turn makes several.
        for size in self._turns:
            while more and done <= steps - size:
                batch = optional.get_value()
                for number in range(size):
                    if number:
                        batch = iterator.get_next()
                    at = first + tf.cast(done, tf.int64)
                    pieces, state, report = self._take_step(pieces, state, batch, at)
                    total += report
                    done += 1
                # Decided here and not by a condition around the step: the ps would wait for it too.
                if done < steps:
                    optional = iterator.get_next_as_optional()
                    more = optional.has_value()
        return done, total, more

    def _take_step(
        self, pieces: list[Tensor], state: list[Tensor], batch: Any, step: Tensor
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """The weights and the state after one step, and what it reports."""
        gradients, new_state, report = self._compute(
            self.weights, self.weights.add_tables(pieces), state, batch, 0, step
        )
        joined = self.weights.state_packing.join(new_state)
        return self._update(gradients), self._update_state(state, joined), report

    def _update(self, gradients: list[Tensor]) -> list[Tensor]:
        """Apply the gradients on the parameter servers; what is read whole, as it is then."""
        weights = self.weights
        tables = weights.table_pieces()
        gradients = clip(gradients, weights.packing, weights.limits)
        updated: list[list[Tensor]] = []
        for number, (store, lock) in enumerate(zip(weights.stores, self._locks, strict=True)):
            with tf.device(store.device):
                # The gradients must be here before the lock is taken.
                here = [
                    tf.nest.map_structure(tf.identity, gradient, expand_composites=True)
                    for gradient in (gradients[i] for i in weights.packing.in_store(number))
                ]

                pieces = zip(weights.packing.in_store(number), store.weights, strict=True)
                whole = [buffer for piece, buffer in pieces if piece not in tables]

                def apply(
                    number: int = number,
                    store: VariableStore = store,
                    here: list[Tensor] = here,
                    whole: list[Any] = whole,
                ) -> list[Tensor]:
                    store.apply(here)
                    if number == 0:
                        self._counter.assign_add(1)
                    return [tf.constant(0), *(buffer.value.read_value() for buffer in whole)]

                updated.append(lock.execute(apply)[1:])
        return weights.order_whole(updated)

    def _update_state(self, before: list[Tensor], after: list[Tensor]) -> list[Tensor]:
        """Add what a step changed; the state as it is then."""
        changes = zip(self.weights.state_variables(), before, after, strict=True)
        return [
            tf.convert_to_tensor(variable.assign_add(new - old)) for variable, old, new in changes
        ]
