"""In step on parameter servers: gradients meet there, and one update is made of several."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError, DataError, PeerError
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
from phalanx.train.variables.row_accumulator import RowAccumulator
from phalanx.train.variables.sparse_tables import merge_rows

LOG = logging.getLogger("phalanx")

STOP = -1
EVALUATE = -2
_POLL_SECONDS = 0.5


class SyncPSEngine:
    """Updates are made of the sum of `required` gradients; gradients of an older step are dropped.

    Each trainer runs one long call: it waits for a token, the number of a turn, works on one batch
    with the weights as they are then, and adds what it found to the sums on the parameter
    servers. The chief takes a sum as soon as enough have come, makes the update, and hands out the
    next tokens. If more trainers are there than are required, the slowest of each step are backups.
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
        self._wait_seconds = config.wait_seconds
        trainers = len(ps_cluster.trainers)
        self._required = config.replicas_to_aggregate or trainers
        if self._required > trainers:
            raise ConfigurationError(
                f"replicas_to_aggregate is {self._required}, but there are only {trainers} trainers"
            )
        self.weights = DeviceVariables.place(host_variables, ps_cluster.devices, limits)
        self._rows = RowAccumulator(self.weights, trainers)
        # Before the gradients, each sum has the examples they are of: with backups, one server may
        # have got a gradient that another has not. The first has the whole report there, and who
        # took part, and the state after them.
        self._head = step.report_size + trainers
        self._state_sizes = [_size(piece.shape) for piece in self.weights.state_packing.pieces]
        self._sizes = [
            sum(_size(self.weights.packing.pieces[i].shape) for i in self._whole_in(n))
            + (1 if n else self._head + sum(self._state_sizes))
            for n in range(len(ps_cluster.devices))
        ]
        self._sums = []
        for device, size in zip(ps_cluster.devices, self._sizes, strict=True):
            with tf.device(device):
                self._sums.append(
                    tf.raw_ops.ResourceConditionalAccumulator(
                        dtype=tf.float32, shape=[size], reduction_type="SUM"
                    )
                )
        self._shared_evaluation = SharedEvaluation(ps_cluster, step, self.weights)
        with tf.device(ps_cluster.devices[0]):
            self._evaluations = tf.queue.FIFOQueue(2**10, [tf.float64], [[step.report_size]])
            self._tokens = [tf.queue.FIFOQueue(2**20, [tf.int64], [[]]) for _ in range(trainers)]
        compute = cut_batches(step, config.accumulate)
        self._compute = tf.function(compute, jit_compile=True) if config.xla else compute
        # Traced here: what the coordinator traces itself, it traces inside the strategy's scope.
        self._there = tf.function(self._work).get_concrete_function(
            tf.data.IteratorSpec(element_spec), tf.TensorSpec([], tf.int32)
        )
        self._here = tf.function(self._work)
        self._apply = tf.function(self._apply_sums)
        self._update = tf.function(self._update_many)
        self._steps_per_call = StepsPerCall(fixed=config.steps_per_call)
        self._failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self._working: list[Future[None]] = []
        self._has_tokens = False
        self._started = False
        self._turn = 0
        with tf.device(CHIEF_DEVICE):
            self._made = tf.Variable(0, dtype=tf.int64, trainable=False)

    def begin(self, step: int, skip: int) -> None:
        """Fill the parameter servers and set everybody to work."""
        self.weights.push()
        for accumulator in self._sums:
            tf.raw_ops.ResourceAccumulatorSetGlobalStep(
                handle=accumulator, new_global_step=tf.constant(step, tf.int64)
            )
        self._turn = step
        self._started = skip > 0
        self._open(skip)

    def advance(self, step: int, due: int, limit: int) -> Progress:
        """Make updates, as many as fit the pace, while the trainers work on their own."""
        steps = max(0, min(self._steps_per_call.steps, due - step, limit - step))
        if not steps:
            return Progress(0, np.zeros([self._step.report_size]))
        started = time.perf_counter()
        self._made.assign(step)
        call = call_in_background(
            self._update, tf.constant(steps), tf.constant(self._turn, tf.int64),
            tf.constant(not self._has_tokens),
        )  # fmt: skip
        done, report, more, turn = self._wait_for(call)
        self._turn = int(turn)
        self._has_tokens = bool(more)
        self._steps_per_call.record(int(done), time.perf_counter() - started)
        if not int(done) and not self._started:
            raise DataError(
                "train_data gave no batch to any trainer: the data is empty; check its paths and "
                "filters"
            )
        self._started = True
        return Progress(int(done), report.numpy().astype(np.float64), not bool(more))

    def rewind(self) -> None:
        """Let everybody open the data again."""
        self._dismiss()
        self._open(0)

    def settle(self) -> None:
        """Nothing is ever under way."""

    def pull(self) -> None:
        """Between two updates nothing changes."""
        self.weights.pull()

    def evaluate(self, limit: int | None, notify: Callable[[int], None]) -> Any:
        """On all hosts, between two updates."""
        if not self._shared_evaluation.is_shared():
            return self._shared_evaluation.evaluate_on_chief(notify)
        for tokens in self._tokens[self._ps_cluster.chief_trains :]:
            tokens.enqueue(tf.constant(EVALUATE, tf.int64))
        return self._shared_evaluation.evaluate(
            [call_in_background(self._take_evaluations)], notify
        )

    def is_interrupted(self) -> bool:
        """Whether another task was asked to end."""
        return self._ps_cluster.is_interrupted()

    def finish(self, error: BaseException | None) -> None:
        """Send the trainers home. By now everything is saved: none is worth a failure."""
        if error is None:
            try:
                self._dismiss()
            except PeerError as late:
                LOG.warning("%s", late)

    def _open(self, skip: int) -> None:
        remote = self._ps_cluster.open_remote(skip, 1)
        self._has_tokens = False
        self._working = []
        for slot in range(len(self._ps_cluster.trainers)):
            number = tf.constant(slot)
            if slot == 0 and self._ps_cluster.chief_trains:
                local = self._ps_cluster.open_local(skip, 1)
                self._working.append(call_in_background(self._work_here, local, number))
            else:
                value = self._ps_cluster.coordinator.schedule(self._there, args=(remote, number))
                self._working.append(call_in_background(self._watch, value))

    def _dismiss(self) -> None:
        for tokens in self._tokens:
            tokens.enqueue(tf.constant(STOP, tf.int64))
        deadline = time.monotonic() + self._wait_seconds
        for future in self._working:
            try:
                future.result(timeout=max(0.1, deadline - time.monotonic()))
            except FutureTimeoutError:
                raise PeerError(
                    f"gave up after {self._wait_seconds:.0f} s waiting for a trainer to end its "
                    "work"
                ) from None

    def _work_here(self, iterator: Any, slot: Tensor) -> None:
        try:
            with tf.device(CHIEF_DEVICE):
                self._here(iterator, slot)
        except BaseException as error:
            self._failures.put(error)

    def _watch(self, value: Any) -> None:
        try:
            fetch(value)
        except BaseException as error:
            self._failures.put(error)

    def _take_evaluations(self) -> Any:
        wanted = len(self._shared_evaluation.worker_shards)
        while int(self._evaluations.size()) < wanted:
            if not self._failures.empty():
                raise self._failures.get()
            time.sleep(_POLL_SECONDS / 10)
        return self._evaluations.dequeue_many(wanted).numpy().sum(axis=0)

    def _wait_for(self, call: Future[Any]) -> Any:
        """An update waits inside TensorFlow for gradients that may never come: keep watch."""
        seen, since = self._made.numpy(), time.monotonic()
        while True:
            try:
                return call.result(timeout=_POLL_SECONDS)
            except FutureTimeoutError:
                if not self._failures.empty():
                    raise self._failures.get() from None
                made = self._made.numpy()
                if made != seen:
                    seen, since = made, time.monotonic()
                if time.monotonic() - since > self._wait_seconds:
                    names = ", ".join(str(task) for task in self._ps_cluster.trainers)
                    raise PeerError(
                        f"gave up after {self._wait_seconds:.0f} s at step {made}: fewer than "
                        f"{self._required} of the trainers ({names}) sent a gradient"
                    ) from None

    def _work(self, iterator: Any, slot: Tensor) -> Tensor:
        """A trainer's whole work, until it gets the token that says stop."""
        worked = tf.constant(0)
        token, is_asked = self._next_token(slot)
        while token != STOP:
            if self._shared_evaluation.is_shared() and is_asked:
                member = slot + int(not self._ps_cluster.chief_trains)
                self._evaluations.enqueue(self._shared_evaluation.evaluate_remote(member))
            if token >= 0:
                self._work_on(iterator, slot, token)
                worked += 1
            token, is_asked = self._next_token(slot)
        return worked

    def _work_on(self, iterator: Any, slot: Tensor, token: Tensor) -> None:
        """One batch's part in a turn."""
        pieces, state = self.weights.read(), self.weights.read_state()
        optional = iterator.get_next_as_optional()
        sums, rows = tf.cond(
            optional.has_value(),
            lambda: self._weigh(pieces, state, optional.get_value(), slot, token),
            lambda: ([tf.zeros([size]) for size in self._sizes], self._rows.nothing()),
        )
        with tf.control_dependencies(self._rows.add(slot, token, rows)):
            for accumulator, value in zip(self._sums, sums, strict=True):
                tf.raw_ops.ResourceAccumulatorApplyGradient(
                    handle=accumulator, local_step=token, gradient=value
                )

    def _next_token(self, slot: Tensor) -> tuple[Tensor, Tensor]:
        """Wait for a token; if several are there, this trainer was slow: take the newest turn."""

        def take(tokens: Any) -> Tensor:
            with tf.device(self._ps_cluster.devices[0]):
                taken = tokens.dequeue_many(tf.maximum(tokens.size(), 1))
                stops = tf.reduce_any(taken == STOP)
                newest = tf.where(stops, tf.constant(STOP, tf.int64), tf.reduce_max(taken))
                return newest, tf.reduce_any(taken == EVALUATE)

        takes = [lambda tokens=tokens: take(tokens) for tokens in self._tokens]
        token, is_asked = tf.switch_case(slot, takes)
        return token, is_asked

    def _weigh(
        self, pieces: Any, state: Any, batch: Any, slot: Tensor, step: Tensor
    ) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
        """What a batch adds to the sum on each server, and to the rows: times its examples."""
        gradients, new_state, report = self._compute(self.weights, pieces, state, batch, slot, step)
        count = report[0]
        sums = []
        for store in range(len(self._sums)):
            parts = [
                tf.reshape(tf.cast(tf.convert_to_tensor(gradients[i]), tf.float32) * count, [-1])
                for i in self._whole_in(store)
            ]
            if store == 0:
                joined = self.weights.state_packing.join(new_state)
                parts = [report, tf.one_hot(slot, len(self._tokens)), *parts]
                parts += [tf.cast(value, tf.float32) * count for value in joined]
            else:
                parts = [report[:1], *parts]
            sums.append(tf.concat(parts, 0))
        rows = [merge_rows(gradients[number]) for number in self.weights.table_pieces()]
        return sums, [(r.indices, r.values * tf.cast(count, r.values.dtype)) for r in rows]

    def _whole_in(self, store: int) -> list[int]:
        """The pieces of a store that are summed as a whole."""
        tables = self.weights.table_pieces()
        return [number for number in self.weights.packing.in_store(store) if number not in tables]

    def _update_many(
        self, steps: Tensor, turn: Tensor, is_first: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        done = tf.constant(0)
        total = tf.zeros([self._step.report_size])
        more = tf.constant(True)
        if is_first:
            self._hand_out(turn)
        while more and done < steps:
            sums = [self._take(store) for store in range(len(self._sums))]
            report = sums[0][: self._step.report_size]
            more = report[0] > 0
            with tf.control_dependencies(sums):
                rows = self._rows.take(turn, sums[0][self._step.report_size : self._head])
            # To take a sum moves it on by one: what comes later for the old turn is dropped.
            turn += 1
            if more:
                # As a function of its own, so that the tokens can wait for all that it does.
                applied = self._apply(sums, rows, report[0])
                total += report
                done += 1
                with tf.control_dependencies([applied]):
                    self._hand_out(turn)
                    self._made.assign_add(1)
        return done, total, more, turn

    def _take(self, store: int) -> Tensor:
        taken = tf.raw_ops.ResourceAccumulatorTakeGradient(
            handle=self._sums[store], num_required=self._required, dtype=tf.float32
        )
        return tf.ensure_shape(taken, [self._sizes[store]])

    def _hand_out(self, turn: Tensor) -> None:
        with tf.device(self._ps_cluster.devices[0]):
            for tokens in self._tokens:
                tokens.enqueue(turn)

    def _apply_sums(
        self, sums: list[Tensor], rows: dict[int, tuple[Tensor, Tensor]], count: Tensor
    ) -> Tensor:
        packing, state_packing = self.weights.packing, self.weights.state_packing
        gradients: list[Tensor] = [None] * len(packing.pieces)
        for number, (indices, values) in rows.items():
            shape = tf.constant(packing.pieces[number].shape, tf.int64)
            mean = values / tf.cast(count, values.dtype)
            gradients[number] = tf.IndexedSlices(mean, indices, shape)
        for store, whole in enumerate(sums):
            mine = self._whole_in(store)
            head = 1 if store else self._head
            tail = [] if store else self._state_sizes
            sizes = [_size(packing.pieces[i].shape) for i in mine]
            parts = tf.split(whole, [head, *sizes, *tail])[1:]
            for index, part in zip(mine, parts[: len(sizes)], strict=True):
                piece = packing.pieces[index]
                mean = tf.math.divide_no_nan(part, whole[0])
                gradients[index] = tf.cast(tf.reshape(mean, piece.shape), piece.dtype)
            if tail:
                self.weights.write_state(
                    [
                        tf.cast(tf.reshape(part / count, piece.shape), piece.dtype)
                        for part, piece in zip(
                            parts[len(sizes) :], state_packing.pieces, strict=True
                        )
                    ]
                )
        self.weights.apply(gradients)
        return tf.constant(True)


def _size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))
