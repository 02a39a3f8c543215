"""Synchronous training on parameter servers, which sum the gradients of several trainers."""

import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError, DataError, PeerError
from phalanx.train.autograph import unconverted
from phalanx.train.engines.base import Notify, Progress
from phalanx.train.engines.data_ends import DataEnds
from phalanx.train.engines.ps_base import ParameterServerEngine
from phalanx.train.runtime.background_calls import call_in_background
from phalanx.train.runtime.ps_cluster import CHIEF_DEVICE, DataWindow, fetch
from phalanx.train.runtime.trainer_losses import TrainerLosses
from phalanx.train.runtime.trainer_tokens import STOP, TrainerTokens
from phalanx.train.step.accumulation import (
    has_examples,
    scale,
    weight_by_examples,
    zero_contribution,
)
from phalanx.train.step.step_function import StepResult
from phalanx.train.step.step_times import StepTimes, read_clock
from phalanx.train.types import Array, DatasetIterator, ElementSpec, Tensor
from phalanx.train.variables.index_shard import Sightings
from phalanx.train.variables.row_accumulator import RowAccumulator, Rows
from phalanx.train.variables.sparse_tables import merge_rows
from phalanx.train.variables.state_queue import StateQueue

T = TypeVar("T")

LOG = logging.getLogger("phalanx")

_POLL_SECONDS = 0.5
# Tokens are sent again so often after a loss: a lost worker may have taken them.
_RESEND_SECONDS = 1.0
# How long the call of a lost trainer has to be taken over, and ended, at the end of a pass.
_TAKE_OVER_SECONDS = 10.0


class SyncPSEngine(ParameterServerEngine):
    """Makes each update of the sum of `required` gradients, and drops gradients that come late.

    Each trainer runs one long call: it waits for a token, the number of an update, computes one
    batch with the current weights, and adds the result to the sums on the parameter servers. As
    soon as enough gradients have arrived, the chief lets the servers apply their sums, of which it
    gets only the report, and sends the next tokens. Trainers beyond those required are backups:
    each update drops its stragglers.

    A trainer whose worker is lost is missing until another worker runs its call. Without backups,
    its gradient and the position in its data are lost, and the run must begin again with the last
    checkpoint. With backups, the others go on, and the chief evaluates its shard.

    Trainers whose data has ended stand in for the missing gradients with zeros, see `DataEnds`.
    """

    def _build(self, element_spec: ElementSpec) -> None:
        ps_cluster, config, step = self._ps_cluster, self._ps_cluster.config, self._step
        self._compute = self._compile(self._make_compute())
        self._wait_seconds = config.wait_seconds
        trainers = len(ps_cluster.trainers)
        self._required = config.replicas_to_aggregate or trainers
        self._backups = trainers - self._required
        if self._required > trainers:
            raise ConfigurationError(
                f"replicas_to_aggregate is {self._required}, but there are only {trainers} "
                "trainers: lower it, or start more workers"
            )
        layout = self.variables.layout
        self._rows = RowAccumulator(self.variables, trainers)
        # Each sum begins with the number of its examples: with backups, one server may have
        # received a gradient that another has not. The first server's sum begins with the whole
        # report, the trainers that took part, and how long each has waited for its batch and
        # computed; it ends with the state that is averaged.
        self._head = step.report_size + 3 * trainers
        state_buffers = self.variables.select_changing(self.variables.state_layout.buffers)
        self._is_averaged = [tf.as_dtype(buffer.dtype).is_floating for buffer in state_buffers]
        self._averages, others = self._split_state(state_buffers)
        self._state_queue = StateQueue(others, ps_cluster.devices[0])
        self._state_sizes = [buffer.size for buffer in self._averages]
        self._sizes = [
            sum(layout.buffers[index].size for index in self._dense_in(store))
            + (1 if store else self._head + sum(self._state_sizes))
            for store in range(len(ps_cluster.devices))
        ]
        self._sums = []
        for device, size in zip(ps_cluster.devices, self._sizes, strict=True):
            with tf.device(device):
                self._sums.append(
                    tf.raw_ops.ResourceConditionalAccumulator(
                        dtype=tf.float32, shape=[size], reduction_type="SUM"
                    )
                )
        with tf.device(ps_cluster.devices[0]):
            # The number of the evaluation, the shard, and its report.
            self._evaluations = tf.queue.FIFOQueue(2**10, [tf.float64], [[2 + step.report_size]])
        with tf.device(CHIEF_DEVICE):
            self._completed = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._ends = DataEnds(trainers, self._backups, ps_cluster.devices[0])
        self._tokens = TrainerTokens(trainers, ps_cluster.devices[0])
        self._losses = TrainerLosses(
            ps_cluster, self._required, lambda: int(self._completed.numpy())
        )
        # The coordinator would trace inside the strategy's scope.
        self._work_remote = tf.function(self._work).get_concrete_function(
            tf.data.IteratorSpec(element_spec),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([], tf.int64),
            tf.TensorSpec([], tf.int64),
        )
        self._work_local = tf.function(self._work)
        self._apply = tf.function(self._apply_sums)
        self._update = tf.function(self._update_many)
        self._drop = tf.function(self._drop_update)
        self._failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self._working: list[Future[None]] = []
        self._evaluation = 0
        self._has_tokens = False
        self._started = False
        self._token = 0
        self._times = [StepTimes() for _ in ps_cluster.trainers]
        # How many tokens were used up by the ends of passes, which make no update.
        self._ended_passes = 0

    def begin(self, step: int, skip: int, passes: int = 0) -> None:
        """Copy the variables to the parameter servers, and start the trainers."""
        self.variables.push()
        for accumulator in self._sums:
            tf.raw_ops.ResourceAccumulatorSetGlobalStep(
                handle=accumulator, new_global_step=tf.constant(step, tf.int64)
            )
        self._token = step
        self._started = skip > 0
        self._passes = passes
        self._open(skip)

    def advance(self, step: int, due: int, limit: int) -> Progress:
        steps = max(0, min(self._steps_per_call.steps, due - step, limit - step))
        if not steps:
            return Progress(0, np.zeros([self._step.report_size]))
        self._completed.assign(step)
        self._losses.check()
        started = time.perf_counter()
        call = call_in_background(
            self._update, tf.constant(steps), tf.constant(self._token, tf.int64),
            tf.constant(not self._has_tokens),
        )  # fmt: skip
        done, report, counts, more, token = self._wait_for(call)
        self._ended_passes += int(token) - self._token - int(done)
        self._token = int(token)
        self._has_tokens = bool(more) and not self._pauses
        seconds = time.perf_counter() - started
        self._count_times(seconds / max(1, int(done)), np.split(counts.numpy(), 3))
        self._steps_per_call.record(int(done), seconds)
        if not int(done) and not self._started:
            raise DataError(
                "train_data gave no batch to any trainer: the data is empty; check its paths and "
                "filters"
            )
        self._started = True
        return Progress(int(done), report.numpy().astype(np.float64), not bool(more))

    def drop(self) -> Progress | None:
        """Wait for the update that the trainers compute already, and do not apply it."""
        if not self._has_tokens:
            return None
        call = call_in_background(self._drop, tf.constant(self._token, tf.int64))
        (report,) = self._wait_for(call)
        self._token += 1
        self._has_tokens = False
        return Progress(int(report[0] > 0), report.numpy().astype(np.float64))

    def resume(self, step: int) -> None:
        self.variables.push()
        # The trainers take other numbers of steps from the next pass over the data on.
        self._ended_passes = self._token - step

    def step_times(self) -> Mapping[str, StepTimes]:
        return dict(zip(map(str, self._ps_cluster.trainers), self._times, strict=True))

    def _count_times(self, seconds_per_step: float, counts: Sequence[Array]) -> None:
        """Add what each trainer has told of the steps that it took part in."""
        for trainer, (steps, data, computing) in enumerate(zip(*counts, strict=True)):
            seconds = float(steps) * seconds_per_step
            spent = StepTimes.split(seconds, float(data), seconds - float(data) - float(computing))
            self._times[trainer] += spent

    def rewind(self) -> None:
        """Stop the trainers, and start them again at the beginning of the data."""
        self._stop_trainers()
        self._passes += 1
        self._open(0)

    def pull(self) -> None:
        self.variables.pull()

    def evaluate(self, notify: Notify, batches_per_call: int | None = None) -> Array:
        """Evaluate on all hosts, between two updates."""
        if not self._shared_evaluation.is_shared():
            return self._shared_evaluation.evaluate_on_chief(notify, batches_per_call)
        self._evaluation += 1
        shards = self._shared_evaluation.worker_shards
        self._tokens.request_evaluation(self._evaluation, map(self._trainer_of, shards))
        reports = call_in_background(self._take_evaluations, self._evaluation)
        return self._shared_evaluation.evaluate([reports], notify, batches_per_call)

    def finish(self, error: BaseException | None) -> None:
        """Stop the trainers. The run is saved by now, so a trainer that is late is only logged."""
        if error is None:
            try:
                self._stop_trainers()
            except PeerError as late:
                LOG.warning("%s", late)

    def _open(self, skip: int) -> None:
        # An update of empty batches alone would look like the end of the data.
        window = DataWindow(self._passes, skip, 1, drops_empty=self._backups > 0)
        remote = self._ps_cluster.open_remote(window)
        self._has_tokens = False
        self._ends.begin_pass()
        self._working = []
        self._losses.begin_calls()
        ended = tf.constant(self._ended_passes, tf.int64)
        number_of_pass = tf.constant(self._passes, tf.int64)
        for number in range(len(self._ps_cluster.trainers)):
            trainer = tf.constant(number)
            if number == 0 and self._ps_cluster.chief_trains:
                local = self._ps_cluster.open_local(window)
                self._working.append(
                    call_in_background(
                        self._watch, self._run_local, local, trainer, ended, number_of_pass
                    )
                )
            else:
                value = self._ps_cluster.coordinator.schedule(
                    self._work_remote, args=(remote, trainer, ended, number_of_pass)
                )
                self._losses.add_call(value, number)
                self._working.append(call_in_background(self._watch, fetch, value))

    def _stop_trainers(self) -> None:
        self._tokens.end_pass(self._passes, range(len(self._working)))
        since = sent = time.monotonic()
        for trainer, future in enumerate(self._working):
            while not future.done():
                now = time.monotonic()
                if not self._backups:
                    self._losses.check()
                elif self._losses.is_missing(trainer) and now - since > _TAKE_OVER_SECONDS:
                    break
                if self._losses.has_any and now - sent > _RESEND_SECONDS:
                    sent = now
                    self._tokens.end_pass(self._passes, [trainer])
                if now - since > self._wait_seconds:
                    raise PeerError(
                        f"gave up after {self._wait_seconds:.0f} s waiting for a trainer to finish "
                        "its batch"
                    )
                wait([future], _POLL_SECONDS / 10)

    def _run_local(self, *arguments: object) -> None:
        with tf.device(CHIEF_DEVICE):
            self._work_local(*arguments)

    def _watch(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            function(*arguments)
        except BaseException as error:
            self._failures.put(error)

    def _take_evaluations(self, number: int) -> Array:
        """Return the sum of all workers' reports; evaluate the shards of those that are missing."""
        shards = self._shared_evaluation.worker_shards
        reports: dict[int, Array] = {}
        sent = time.monotonic()
        while len(reports) < len(shards):
            if not self._failures.empty():
                raise self._failures.get_nowait()
            if int(self._evaluations.size()):
                # A worker that was lost may also answer to an earlier evaluation.
                answered, shard, *report = self._evaluations.dequeue().numpy()
                if int(answered) == number:
                    reports[int(shard)] = np.asarray(report)
                continue
            missing = [shard for shard in shards if shard not in reports]
            if all(self._losses.is_missing(self._trainer_of(shard)) for shard in missing):
                LOG.warning(
                    "the chief evaluates the shards of %d lost workers of %d",
                    len(missing), len(shards),
                )  # fmt: skip
                for shard in missing:
                    reports[shard] = self._shared_evaluation.evaluate_shard(shard)
            elif self._losses.has_any and time.monotonic() - sent > _RESEND_SECONDS:
                sent = time.monotonic()
                self._tokens.request_evaluation(number, map(self._trainer_of, missing))
            time.sleep(_POLL_SECONDS / 10)
        return np.asarray(sum(reports.values()))

    def _trainer_of(self, shard: int) -> int:
        """Return the trainer that evaluates a shard; the chief, which may not train, has 0."""
        return shard - int(not self._ps_cluster.chief_trains)

    def _wait_for(self, call: Future[Any]) -> tuple[Tensor, ...]:
        """Wait for updates; TensorFlow itself would wait without limit for missing gradients."""
        begun = seen = int(self._completed.numpy())
        since = sent = time.monotonic()
        while True:
            try:
                updated: tuple[Tensor, ...] = call.result(timeout=_POLL_SECONDS)
                return updated
            except FutureTimeoutError:
                if not self._failures.empty():
                    raise self._failures.get_nowait() from None
                completed, now = int(self._completed.numpy()), time.monotonic()
                self._losses.check()
                if completed != seen:
                    seen, since = completed, now
                elif self._losses.has_any and now - max(since, sent) > _RESEND_SECONDS:
                    sent = now
                    self._replace_lost(self._token + completed - begun)
                if now - since > self._wait_seconds:
                    names = ", ".join(str(task) for task in self._ps_cluster.trainers)
                    raise PeerError(
                        f"gave up after {self._wait_seconds:.0f} s at step {completed}: fewer than "
                        f"{self._required} of the trainers ({names}) sent a gradient"
                    ) from None

    def _replace_lost(self, token: int) -> None:
        """Ask trainers without data again for an update that lacks the gradients of lost ones."""
        self._ends.leave_out(self._losses.find_missing())
        self._tokens.send(token, self._ends.find_ended())

    def _work(
        self, iterator: DatasetIterator, trainer: Tensor, ended: Tensor, number_of_pass: Tensor
    ) -> Tensor:
        """Run a trainer until it receives the token that ends this pass, or a later one.

        The tokens of updates are larger than the numbers of their steps by `ended`.
        """
        batches = self._losses.take_over(trainer)
        self._ends.begin_call(trainer)
        added = tf.constant(-1, tf.int64)
        # State that no step changes is fetched only once.
        state = [tf.identity(value) for value in self.variables.read_state()]
        token, evaluation = self._tokens.take(trainer, number_of_pass)
        while token != STOP:
            if self._shared_evaluation.is_shared() and evaluation >= 0:
                shard = trainer + int(not self._ps_cluster.chief_trains)
                report = self._shared_evaluation.evaluate_remote(shard)
                head = [tf.cast(evaluation, tf.float64), tf.cast(shard, tf.float64)]
                self._evaluations.enqueue(tf.concat([head, report], 0))
            # The chief may ask for the same update again.
            if token > added:
                if self._contribute(iterator, trainer, token, token - ended, state):
                    added = token
                batches += 1
            token, evaluation = self._tokens.take(trainer, number_of_pass)
        return batches

    def _contribute(
        self,
        iterator: DatasetIterator,
        trainer: Tensor,
        token: Tensor,
        step: Tensor,
        state: list[Tensor],
    ) -> Tensor:
        """Add one batch to the update of a token; without data, add zeros if they are needed.

        Returns whether it added something.
        """
        variables = self.variables
        dense, changing = variables.read_dense(), variables.read_changing_state()
        buffers = variables.add_sparse(dense)
        state = variables.replace_changing(state, changing)
        # Copies here: the weights are sent to this task anyway.
        begun = read_clock([tf.identity(value) for value in (*dense, *changing)])
        optional = iterator.get_next_as_optional()
        arrived = read_clock(begun, optional.has_value())
        contribution = tf.cond(
            has_examples(optional),
            lambda: weight_by_examples(
                self._compute(variables, buffers, state, optional.get_value(), trainer, step),
                variables,
            ),
            lambda: zero_contribution(variables, changing, self._step.report_size),
        )
        computed = read_clock(arrived, contribution.gradients, contribution.report)
        adds = optional.has_value() or self._ends.is_needed(trainer)
        if adds:
            times = tf.stack([arrived - begun, computed - arrived])
            sums, rows = self._serialize(contribution, trainer, times)
            others = self._split_state(contribution.state)[1]
            added = self._state_queue.add(trainer, token, others)
            with tf.control_dependencies([*self._rows.add(trainer, token, rows), *added]):
                for accumulator, value in zip(self._sums, sums, strict=True):
                    tf.raw_ops.ResourceAccumulatorApplyGradient(
                        handle=accumulator, local_step=token, gradient=value
                    )
        return adds

    @unconverted
    def _serialize(
        self, contribution: StepResult, trainer: Tensor, times: Tensor
    ) -> tuple[list[Tensor], list[Rows]]:
        """Return what a contribution adds to the sum on each server, and to the sparse rows."""
        gradients, state, report, sightings = contribution
        counts = [tf.cast(report[0] > 0, tf.float32), *tf.unstack(tf.cast(times, tf.float32))]
        one_hot = tf.one_hot(trainer, len(self._ps_cluster.trainers))
        sums = []
        for store in range(len(self._sums)):
            parts = [
                tf.reshape(tf.cast(gradients[index], tf.float32), [-1])
                for index in self._dense_in(store)
            ]
            if store == 0:
                parts = [report, *(one_hot * count for count in counts), *parts]
                parts += [tf.cast(value, tf.float32) for value in self._split_state(state)[0]]
            else:
                parts = [report[:1], *parts]
            sums.append(tf.concat(parts, 0))
        indices = self.variables.sparse_gradients()
        merged = [
            merge_rows(gradients[index]) if self.variables.is_sparse(index) else gradients[index]
            for index in indices
        ]
        rows = [[gradient.indices, gradient.values] for gradient in merged]
        for index, seen in zip(self.variables.growing_buffers(), sightings, strict=True):
            rows[indices.index(index)] += [seen.ids, seen.counts]
        return sums, rows

    @unconverted
    def _split_state(self, state: Sequence[T]) -> tuple[list[T], list[T]]:
        """Return the buffers of changing state that are averaged, and the others."""
        pairs = list(zip(state, self._is_averaged, strict=True))
        return [value for value, is_mean in pairs if is_mean], [v for v, mean in pairs if not mean]

    @unconverted
    def _dense_in(self, store: int) -> list[int]:
        indices = self.variables.layout.in_store(store)
        return [index for index in indices if not self.variables.has_sparse_gradient(index)]

    def _update_many(
        self, steps: Tensor, token: Tensor, is_first: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        done = tf.constant(0)
        total = tf.zeros([self._step.report_size])
        total_counts = tf.zeros([3 * len(self._ps_cluster.trainers)])
        more = tf.constant(True)
        if is_first:
            self._tokens.send_update(token)
        while more and done < steps:
            sums, report, counts, rows, others = self._take_update(token)
            more = report[0] > 0
            # Taking a sum advances its accumulator: gradients for the old token are dropped.
            token += 1
            if more:
                # A function call, so that the tokens can depend on all that it does.
                applied = self._apply(sums, rows, others, report[0])
                total += report
                total_counts += counts
                done += 1
                with tf.control_dependencies([applied]):
                    if not self._pauses or done < steps:
                        self._tokens.send_update(token)
                    self._completed.assign_add(1)
        return done, total, total_counts, more, token

    def _drop_update(self, token: Tensor) -> tuple[Tensor]:
        _, report, _, rows, others = self._take_update(token)
        with tf.control_dependencies(tf.nest.flatten([rows, others], expand_composites=True)):
            return (tf.identity(report),)

    @unconverted
    def _take_update(
        self, token: Tensor
    ) -> tuple[list[Tensor], Tensor, Tensor, dict[int, Rows], list[Tensor]]:
        """Wait for the sums of an update.

        Returns them, its report, the counts of trainers, sparse rows and other state.
        """
        sums = [self._take(store) for store in range(len(self._sums))]
        with tf.device(self._ps_cluster.devices[0]):
            head = sums[0][: self._head]
            # Only these leave the parameter servers.
            report, counts = tf.split(head, [self._step.report_size, -1])
            counted = counts[: len(self._ps_cluster.trainers)]
        with tf.control_dependencies(sums):
            rows = self._rows.take(token, counted)
            others = self._state_queue.take(token, counted)
        return sums, report, counts, rows, others

    @unconverted
    def _take(self, store: int) -> Tensor:
        with tf.device(self._ps_cluster.devices[store]):
            taken = tf.raw_ops.ResourceAccumulatorTakeGradient(
                handle=self._sums[store], num_required=self._required, dtype=tf.float32
            )
            return tf.ensure_shape(taken, [self._sizes[store]])

    @unconverted
    def _apply_sums(
        self, sums: list[Tensor], rows: dict[int, Rows], others: list[Tensor], count: Tensor
    ) -> Tensor:
        """Update the variables by sums that are on the parameter servers, and stay there."""
        layout, devices = self.variables.layout, self._ps_cluster.devices
        gradients: list[Tensor] = [None] * len(layout.buffers)
        for index, (indices, values, *_) in rows.items():
            with tf.device(devices[layout.buffers[index].store]):
                shape = tf.constant(layout.buffers[index].shape, tf.int64)
                gradients[index] = scale(tf.IndexedSlices(values, indices, shape), 1 / count)
        averages: list[Tensor] = []
        for store, total in enumerate(sums):
            dense = self._dense_in(store)
            sizes = [layout.buffers[index].size for index in dense]
            head, tail = (1, []) if store else (self._head, self._state_sizes)
            with tf.device(devices[store]):
                parts = tf.split(total, [head, *sizes, *tail])[1:]
                for index, part in zip(dense, parts[: len(sizes)], strict=True):
                    buffer = layout.buffers[index]
                    mean = tf.math.divide_no_nan(part, total[0])
                    gradients[index] = tf.cast(tf.reshape(mean, buffer.shape), buffer.dtype)
                averages += parts[len(sizes) :]
        # On the chief: the variables may be on another server, and servers send nothing to others.
        means = [
            tf.cast(tf.reshape(total / count, buffer.shape), buffer.dtype)
            for total, buffer in zip(averages, self._averages, strict=True)
        ]
        exact = iter(others)
        self.variables.write_changing_state(
            [means.pop(0) if is_mean else next(exact) for is_mean in self._is_averaged]
        )
        self.variables.apply(gradients, are_stored=True)
        seen = []
        for index in self.variables.growing_buffers():
            with tf.device(devices[layout.buffers[index].store]):
                seen.append(Sightings.merge(*rows[index][2:]))
        self.variables.grow(seen)
        return tf.constant(True)
