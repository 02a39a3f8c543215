"""Evaluation: the loop over the evaluation data, on one host or on all hosts of a ps cluster."""

import dataclasses
import logging
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial

import numpy as np
import tensorflow as tf

from phalanx.errors import DataError, PeerError
from phalanx.train.autograph import call_converted, unconverted
from phalanx.train.context import Context
from phalanx.train.engines.base import EvaluationEngine, Notify
from phalanx.train.engines.reduction import Reduction
from phalanx.train.model_dir.summaries import Summaries
from phalanx.train.runtime.ps_cluster import CHIEF_DEVICE, ParameterServerCluster
from phalanx.train.runtime.task_data import make_eval_data
from phalanx.train.runtime.worker_data import can_be_sent
from phalanx.train.step.step_function import StepFunction
from phalanx.train.types import Array, Dataset, DatasetIterator, Tensor, TFFunction
from phalanx.train.variables.device_variables import DeviceVariables

LOG = logging.getLogger("phalanx")

_MAX_BATCHES_PER_CALL = 16
# How often an evaluation of an unknown number of batches logs how many are done.
_SECONDS_BETWEEN_LINES = 10.0


def count_batches(data: Dataset, limit: int | None, replicas: int = 1) -> int | None:
    """Return how many batches each replica evaluates, or None if that is unknown."""
    count = -(-int(data.cardinality()) // replicas)
    return min(filter(None, (limit, max(count, 0))), default=None)


def evaluate(
    step_function: StepFunction,
    engine: EvaluationEngine,
    summaries: Summaries,
    batches: int | None,
    step: int,
    notify: Notify = lambda batches, report: None,
    batches_per_call: int | None = None,
    *,
    trained: bool = True,
) -> dict[str, float]:
    """Evaluate the engine's weights, log the progress, and write the result as that of `step`.

    Weights that were not `trained` by a run have no step: the log names none.
    """
    started = time.monotonic()
    logged, logged_at = 0.0, started

    def log_and_notify(done: int, report: Array) -> None:
        nonlocal logged, logged_at
        now = time.monotonic()
        if batches is None:
            if now - logged_at >= _SECONDS_BETWEEN_LINES:
                logged_at = now
                LOG.info("Evaluation: %d batches", done)
        elif done in (1, batches) or done / batches - logged >= 0.1:
            logged = done / batches
            LOG.info("Evaluation [%d/%d]", done, batches)
        notify(done, report)

    report = engine.evaluate(log_and_notify, batches_per_call)
    if not report[0]:
        raise DataError("eval_data is empty: check its paths and filters")
    values = step_function.read_report(report)
    summaries.write_evaluation(step, values)
    LOG.info(
        "Evaluation%s: %s (%d examples in %.1f s)",
        f" of step {step}" if trained else "",
        ", ".join(f"{name} = {value:.6g}" for name, value in values.items()),
        report[0],
        time.monotonic() - started,
    )
    return values


class EvaluationLoop:
    """Sums the reports of all batches over all replicas.

    A replica without further data contributes zeros until all replicas have read theirs.
    """

    def __init__(
        self,
        step_function: StepFunction,
        copies: Sequence[DeviceVariables],
        devices: Sequence[str | None],
        reduction: Reduction | None = None,
    ) -> None:
        self._step_function = step_function
        self._copies = copies
        self._devices = devices
        self._reduction = reduction or Reduction(tf.distribute.get_strategy())
        self._evaluate_function = tf.function(self.evaluate_batches, reduce_retracing=True)

    def evaluate(
        self,
        iterator: DatasetIterator,
        limit: int | None,
        notify: Notify,
        batches_per_call: int | None = None,
    ) -> Array:
        """Evaluate at most `limit` batches; call `notify` after each call of TensorFlow.

        By default the number of batches in a call grows.
        """
        total = np.zeros([self._step_function.report_size])
        batches, count, has_ended = 0, 1, False
        max_count = batches_per_call or _MAX_BATCHES_PER_CALL
        while not has_ended and (limit is None or batches < limit):
            count = count if limit is None else min(count, limit - batches)
            done, report, more = self._evaluate_function(iterator, tf.constant(count))
            total += report.numpy()
            has_ended = not bool(more)
            batches += int(done)
            if int(done):
                notify(batches, total)
            count = min(count * 2, max_count)
        return total

    def evaluate_batches(
        self, iterator: DatasetIterator, limit: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Evaluate batches in a graph: the number done, the sum of reports, whether more follow."""
        done = tf.constant(0)
        total = tf.zeros([self._step_function.report_size], tf.float64)
        more = tf.constant(True)
        # Weights on another host are fetched once for all batches.
        read = [(copy.add_sparse(copy.read_dense()), copy.read_state()) for copy in self._copies]
        while more and done < limit:
            reports = []
            for index in range(self._reduction.local):
                with tf.device(self._devices[index % len(self._devices)]):
                    reports.append(self._evaluate_batch(index, iterator, read))
            one = self._reduction.sum(reports)[0]
            more = one[0] > 0
            total += tf.cast(one, tf.float64)
            done += tf.cast(more, tf.int32)
        return done, total, more

    @unconverted
    def _evaluate_batch(
        self, index: int, iterator: DatasetIterator, read: list[tuple[list[Tensor], list[Tensor]]]
    ) -> Tensor:
        position = index % len(self._copies)
        copy, (buffers, state) = self._copies[position], read[position]
        optional = iterator.get_next_as_optional()
        return tf.cond(
            optional.has_value(),
            lambda: self._step_function.evaluate(copy, buffers, state, optional.get_value()),
            lambda: tf.zeros([self._step_function.report_size]),
        )


class SharedEvaluation:
    """Splits the evaluation data between the chief and the workers, and sums their reports.

    The chief evaluates shard 0, whether it trains or not. Each other shard is one call without
    state, so that any worker may repeat it.
    """

    def __init__(
        self,
        ps_cluster: ParameterServerCluster,
        step_function: StepFunction,
        weights: DeviceVariables,
    ) -> None:
        self._ps_cluster = ps_cluster
        self._limit = ps_cluster.config.eval_steps or 2**31 - 1
        workers = len(ps_cluster.trainers) - ps_cluster.chief_trains
        trainer = ps_cluster.contexts[0]
        self._contexts = [
            Context(
                num_shards=workers + 1,
                shard=shard,
                batch_size=trainer.batch_size,
                global_batch_size=trainer.global_batch_size,
                num_replicas=workers + 1,
                seed=ps_cluster.config.seed,
            )
            for shard in range(workers + 1)
        ]
        self._is_shared: bool | None = None
        self._local_loop = EvaluationLoop(step_function, [weights], [CHIEF_DEVICE])
        self._remote_loop = EvaluationLoop(step_function, [weights], [None])

    @unconverted
    def is_shared(self) -> bool:
        """Whether there is evaluation data, and it can be sent to the workers as a graph."""
        if self._is_shared is None:
            # This may be called while a function is traced.
            with tf.init_scope():
                make = partial(self._make_data, self._contexts[0])
                data = make()
                self._is_shared = data is not None and can_be_sent(data, make)
        return self._is_shared

    @property
    def worker_shards(self) -> range:
        """The shards that workers evaluate."""
        return range(1, len(self._contexts))

    @unconverted
    def make_shard(self, shard: int) -> Dataset:
        """Return the data of one shard; in the graph of the worker that evaluates it."""
        return self._make_data(self._contexts[shard])

    @unconverted
    def evaluate_data(self, data: Dataset) -> Tensor:
        """Evaluate the data of one shard, and return its report; in the graph of a worker."""
        limit = tf.constant(self._limit)
        return call_converted(self._remote_loop.evaluate_batches, iter(data), limit)[1]

    def trace_shards(self) -> list[TFFunction]:
        """Return a function for each shard of a worker, which has the data of this shard alone."""
        evaluate = tf.function(self.evaluate_data)

        def trace(shard: int) -> TFFunction:
            function = tf.function(lambda: evaluate(self.make_shard(shard)), autograph=False)
            return function.get_concrete_function()

        return [trace(shard) for shard in self.worker_shards]

    def count_batches(self) -> int | None:
        """Return how many batches the chief evaluates, or None if that is unknown."""
        context = self._contexts[0] if self.is_shared() else self._whole()
        return count_batches(self._make_data(context), self._ps_cluster.config.eval_steps)

    def evaluate(
        self,
        others: Sequence[Future[Array]],
        notify: Notify,
        batches_per_call: int | None = None,
    ) -> Array:
        """Evaluate shard 0, wait for the reports of the workers, and sum all reports."""
        started = time.monotonic()
        total = self._evaluate_local(self._contexts[0], notify, batches_per_call)
        # All shards are of similar size: a worker that takes this much longer has failed.
        limit = self._ps_cluster.config.wait_seconds + 10 * (time.monotonic() - started)
        done, late = wait(others, timeout=limit, return_when=FIRST_EXCEPTION)
        reports = [np.asarray(other.result(0)) for other in done]
        if late:
            raise PeerError(
                f"gave up after {limit:.0f} s waiting for the workers to evaluate their shards"
            )
        return np.asarray(np.sum([total, *reports], axis=0))

    def evaluate_shard(self, shard: int) -> Array:
        """Evaluate the shard of a lost worker on the chief."""
        return self._evaluate_local(self._contexts[shard], lambda batches, report: None, None)

    def evaluate_on_chief(self, notify: Notify, batches_per_call: int | None = None) -> Array:
        """Evaluate all data on the chief."""
        return self._evaluate_local(self._whole(), notify, batches_per_call)

    def _whole(self) -> Context:
        return dataclasses.replace(self._contexts[0], num_shards=1, num_replicas=1)

    def _evaluate_local(
        self, context: Context, notify: Notify, batches_per_call: int | None
    ) -> Array:
        data = iter(self._make_data(context))
        return self._local_loop.evaluate(data, self._limit, notify, batches_per_call)

    @unconverted
    def _make_data(self, context: Context) -> Dataset:
        return make_eval_data(self._ps_cluster.experiment, context)
