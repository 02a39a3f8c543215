"""Synchronous training on parameter servers, which sum the gradients of several trainers."""

import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError, DataError, PeerError
from phalanx.train.autograph import unconverted
from phalanx.train.engines.base import Notify, Progress
from phalanx.train.engines.data_ends import DataEnds
from phalanx.train.engines.gradient_sums import GradientSums, Taken
from phalanx.train.engines.ps_base import ParameterServerEngine
from phalanx.train.engines.replicas import read_iterations
from phalanx.train.runtime.background_calls import call_in_background
from phalanx.train.runtime.ps_cluster import CHIEF_DEVICE, DataWindow, fetch
from phalanx.train.runtime.trainer_losses import TrainerLosses
from phalanx.train.runtime.trainer_tokens import STOP, TrainerTokens
from phalanx.train.step.accumulation import (
    has_examples,
    weight_by_examples,
    zero_contribution,
)
from phalanx.train.step.step_function import StepResult
from phalanx.train.step.step_times import StepTimes, read_clock
from phalanx.train.types import Array, Dataset, DatasetIterator, ElementSpec, Tensor, TFFunction
from phalanx.train.variables.device_variables import DeviceVariables

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
        # The first ones are those of the variables, the others those of their replicas.
        self._sums, *self._replica_sums = (
            GradientSums(each, trainers, step.report_size)
            for each in (self.variables, *self._replicas.copies)
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
        self._work = tf.function(self._work_until_end)
        # The coordinator would trace inside the strategy's scope.
        specs = (tf.data.IteratorSpec(element_spec), *[tf.TensorSpec([], tf.int64)] * 2)
        self._work_as = [
            tf.function(partial(self._trace_trainer, number), autograph=False)
            .get_concrete_function(*specs)
            for number in range(trainers)
        ]  # fmt: skip
        self._apply = [tf.function(sums.apply) for sums in (self._sums, *self._replica_sums)]
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

    def begin(self, step: int, skip: int, passes: int = 0, shards: Sequence[int] = ()) -> None:
        """Copy the variables to the parameter servers, and start the trainers."""
        self._push(step)
        for sums in (self._sums, *self._replica_sums):
            sums.begin(step)
        self._token = step
        self._started = skip > 0
        self._passes = passes
        self._open(skip)
        self._has_begun = True

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

    def _push(self, step: int) -> None:
        self.push()
        self._pushed = step, read_iterations(self.variables)

    def _end_calls(self, rescued: DeviceVariables, step: int) -> Progress | None:
        """Return the updates of a call that has failed, unless some servers lack the last one."""
        begun, before = self._pushed
        iterations = read_iterations(rescued)
        if iterations is None or before is None:
            LOG.warning("a parameter server was lost while an update was applied")
            return None
        updates = begun + iterations - before - step
        return Progress(updates, np.zeros([self._step.report_size]))

    def resume(self, step: int) -> None:
        self._push(step)
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
        remote = self._ps_cluster.open_remote(window, self._fixed)
        self._has_tokens = False
        self._ends.begin_pass()
        self._working = []
        self._losses.begin_calls()
        ended = tf.constant(self._ended_passes, tf.int64)
        number_of_pass = tf.constant(self._passes, tf.int64)
        for number, work in enumerate(self._work_as):
            if number == 0 and self._ps_cluster.chief_trains:
                local = self._ps_cluster.open_local(window, self._fixed)
                self._working.append(
                    call_in_background(
                        self._watch, self._run_local, work, local, ended, number_of_pass
                    )
                )
            else:
                value = self._ps_cluster.coordinator.schedule(
                    work, args=(remote, ended, number_of_pass)
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

    def _run_local(self, work: TFFunction, *arguments: object) -> None:
        with tf.device(CHIEF_DEVICE):
            work(*arguments)

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

    def _trace_trainer(
        self, trainer: int, iterator: DatasetIterator, ended: Tensor, number_of_pass: Tensor
    ) -> Tensor:
        """Run a trainer; the graph has its tokens and its evaluation data, and no other's."""
        shard, data = trainer + int(not self._ps_cluster.chief_trains), None
        if shard in self._shared_evaluation.worker_shards and self._shared_evaluation.is_shared():
            data = self._shared_evaluation.make_shard(shard)
        return self._work(
            iterator,
            tf.constant(trainer),
            ended,
            number_of_pass,
            self._tokens.handle(trainer),
            data,
        )

    def _work_until_end(
        self,
        iterator: DatasetIterator,
        trainer: Tensor,
        ended: Tensor,
        number_of_pass: Tensor,
        tokens: Tensor,
        evaluation_data: Dataset | None,
    ) -> Tensor:
        """Run a trainer until it receives the token that ends this pass, or a later one.

        The tokens of updates are larger than the numbers of their steps by `ended`.
        """
        batches = self._losses.take_over(trainer)
        self._ends.begin_call(trainer)
        added = tf.constant(-1, tf.int64)
        token, evaluation = self._tokens.take(tokens, number_of_pass)
        while token != STOP:
            if evaluation_data is not None and evaluation >= 0:
                shard = trainer + int(not self._ps_cluster.chief_trains)
                report = self._shared_evaluation.evaluate_data(evaluation_data)
                head = [tf.cast(evaluation, tf.float64), tf.cast(shard, tf.float64)]
                self._evaluations.enqueue(tf.concat([head, report], 0))
            # The chief may ask for the same update again.
            if token > added:
                if self._contribute(iterator, trainer, token, token - ended):
                    added = token
                batches += 1
            token, evaluation = self._tokens.take(tokens, number_of_pass)
        return batches

    def _contribute(
        self,
        iterator: DatasetIterator,
        trainer: Tensor,
        token: Tensor,
        step: Tensor,
    ) -> Tensor:
        """Add one batch to the update of a token; without data, add zeros if they are needed.

        Returns whether it added something.
        """
        variables = self.variables
        dense, changing = variables.read_dense(), variables.read_changing_state()
        buffers = variables.add_sparse(dense)
        # Copies here: the weights are sent to this task anyway.
        begun = read_clock([tf.identity(value) for value in (*dense, *changing)])
        optional = iterator.get_next_as_optional()
        arrived = read_clock(begun, optional.has_value())

        def compute() -> StepResult:
            batch, fixed = self._split_element(optional.get_value())
            state = variables.join_state(fixed, changing)
            result = self._compute(variables, buffers, state, batch, trainer, step)
            return weight_by_examples(result, variables)

        contribution = tf.cond(
            has_examples(optional, lambda element: self._split_element(element)[0]),
            compute,
            lambda: zero_contribution(variables, changing, self._step.report_size),
        )
        computed = read_clock(arrived, contribution.gradients, contribution.report)
        adds = optional.has_value() or self._ends.is_needed(trainer)
        if adds:
            times = [arrived - begun, computed - arrived]
            for sums in (*self._replica_sums, self._sums):
                sums.add(contribution, trainer, token, times)
        return adds

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
            taken, *copies = self._take(token)
            more = taken.report[0] > 0
            # Taking a sum advances its accumulator: gradients for the old token are dropped.
            token += 1
            if more:
                # A function call, so that the tokens can depend on all that it does.
                applied = [
                    apply(each.sums, each.rows, each.state, each.report[0])
                    for apply, each in zip(self._apply, (taken, *copies), strict=True)
                ]
                total += taken.report
                total_counts += taken.counts
                done += 1
                with tf.control_dependencies(applied):
                    if not self._pauses or done < steps:
                        self._tokens.send_update(token)
                    self._completed.assign_add(1)
        return done, total, total_counts, more, token

    def _drop_update(self, token: Tensor) -> tuple[Tensor]:
        taken = self._take(token)
        dropped = tf.nest.flatten([(each.sums, each.rows, each.state) for each in taken])
        with tf.control_dependencies(dropped):
            return (tf.identity(taken[0].report),)

    @unconverted
    def _take(self, token: Tensor) -> list[Taken]:
        """Take the sums of an update, and of its replicas."""
        return [sums.take(token, self._required) for sums in (self._sums, *self._replica_sums)]
