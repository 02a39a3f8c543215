"""Evaluation: the loop over the evaluation data, on one host or shared by all of a ps cluster."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.errors import DataError, PeerError
from phalanx.train.context import Context
from phalanx.train.engines.base import EvaluationEngine
from phalanx.train.engines.reduction import Reduction
from phalanx.train.model_dir.summaries import Summaries
from phalanx.train.runtime.dataset_graph import can_be_sent
from phalanx.train.runtime.ps_cluster import CHIEF_DEVICE, ParameterServerCluster
from phalanx.train.runtime.task_data import make_eval_data
from phalanx.train.step.step_function import StepFunction
from phalanx.train.types import Tensor
from phalanx.train.variables.device_variables import DeviceVariables

LOG = logging.getLogger("phalanx")

Array = np.ndarray[Any, Any]


def evaluate(
    step: StepFunction, engine: EvaluationEngine, limit: int | None, batches: int | None,
    at_step: int, summaries: Summaries,
) -> dict[str, float]:  # fmt: skip
    """Evaluate the engine's weights, with progress, and write the result."""
    started = time.monotonic()
    total = min(filter(None, (limit, batches)), default=None)
    shown = 0.0

    def notify(done: int) -> None:
        nonlocal shown
        share = done / total if total else 0.0
        if done in (1, total) or (total and share - shown >= 0.1):
            shown = share
            LOG.info("Evaluation [%d/%s]", done, total or "?")

    report = engine.evaluate(notify)
    if not report[0]:
        raise DataError("eval_data is empty: check its paths and filters")
    values = step.read_report(report)
    summaries.write_evaluation(at_step, values)
    LOG.info(
        "Evaluation of step %d: %s (%d examples in %.1f s)",
        at_step,
        ", ".join(f"{name} = {value:.6g}" for name, value in values.items()),
        report[0],
        time.monotonic() - started,
    )
    return values


class EvaluationLoop:
    """Sums the reports of all batches over all replicas. Replicas that run out of data wait."""

    def __init__(
        self,
        step: StepFunction,
        copies: Sequence[DeviceVariables],
        devices: Sequence[str | None],
        reduction: Reduction | None = None,
    ) -> None:
        self._step = step
        self._copies = copies
        self._devices = devices
        self._reduction = reduction or Reduction(tf.distribute.get_strategy())
        self._function = tf.function(self._examine_many, reduce_retracing=True)

    def examine(
        self, iterator: Any, limit: int | None, notify: Callable[[int], None]
    ) -> np.ndarray[Any, Any]:
        """Go through the data, at most `limit` batches; `notify` is told how many were done."""
        total = np.zeros([self._step.report_size])
        batches, at_once, ended = 0, 1, False
        while not ended and (limit is None or batches < limit):
            count = at_once if limit is None else min(at_once, limit - batches)
            done, report, more = self._function(iterator, tf.constant(count))
            total += report.numpy()
            ended = not bool(more)
            batches += int(done)
            if int(done):
                notify(batches)
            at_once = min(at_once * 2, 16)
        return total

    def examine_all(self, data: Any, limit: int) -> Tensor:
        """The same for a whole dataset as part of a function, for whoever runs that."""
        return self._examine_many(iter(data), tf.constant(limit))[1]

    def _examine_many(self, iterator: Any, steps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        done = tf.constant(0)
        total = tf.zeros([self._step.report_size], tf.float64)
        more = tf.constant(True)
        # Weights on another host are fetched once for all batches.
        read = [(copy.add_sparse(copy.read_dense()), copy.read_state()) for copy in self._copies]
        while more and done < steps:
            reports = []
            for index in range(self._reduction.local):
                with tf.device(self._devices[index % len(self._devices)]):
                    reports.append(self._examine_one(index, iterator, read))
            one = self._reduction.sum(reports)[0]
            more = one[0] > 0
            total += tf.cast(one, tf.float64)
            done += tf.cast(more, tf.int32)
        return done, total, more

    def _examine_one(self, index: int, iterator: Any, read: list[Any]) -> Tensor:
        place = index % len(self._copies)
        copy, (pieces, state) = self._copies[place], read[place]
        optional = iterator.get_next_as_optional()
        return tf.cond(
            optional.has_value(),
            lambda: self._step.evaluate(copy, pieces, state, optional.get_value()),
            lambda: tf.zeros([self._step.report_size]),
        )


class SharedEvaluation:
    """Each member takes its share of the evaluation data; what they report is added up.

    The chief is the first member, whether it trains or not. The share of another member is one call
    without any state, so that it may be made again, by whoever is there.
    """

    def __init__(
        self, ps_cluster: ParameterServerCluster, step: StepFunction, weights: DeviceVariables
    ) -> None:
        self._ps_cluster = ps_cluster
        self._limit = ps_cluster.config.eval_steps or 2**31 - 1
        workers = len(ps_cluster.trainers) - ps_cluster.chief_trains
        self._contexts = [
            Context(
                num_shards=workers + 1,
                shard=shard,
                batch_size=ps_cluster.contexts[0].batch_size,
                global_batch_size=ps_cluster.config.global_batch_size,
                num_replicas=workers + 1,
                seed=ps_cluster.config.seed,
            )
            for shard in range(workers + 1)
        ]
        self._shared: bool | None = None
        self._here = EvaluationLoop(step, [weights], [CHIEF_DEVICE])
        self._there = EvaluationLoop(step, [weights], [None])

    def is_shared(self) -> bool:
        """Whether there is something to share, and it can be sent to the workers."""
        if self._shared is None:
            with tf.init_scope():  # This may be asked while a function is traced.
                make = partial(make_eval_data, self._ps_cluster.experiment, self._contexts[0])
                data = make()
                self._shared = data is not None and can_be_sent(data, make)
        return self._shared

    @property
    def members(self) -> range:
        """The numbers of the members beside the chief."""
        return range(1, len(self._contexts))

    def examine_there(self, member: Tensor) -> Tensor:
        """The report of a member's share: to be traced, and run by that member."""
        shares = [
            lambda context=context: make_eval_data(self._ps_cluster.experiment, context)
            for context in self._contexts
        ]
        return self._there.examine_all(tf.switch_case(member, shares), self._limit)

    def examine(self, others: Sequence[Future[Any]], notify: Callable[[int], None]) -> Array:
        """Do the chief's share while the others do theirs; the sum of all reports."""
        data = make_eval_data(self._ps_cluster.experiment, self._contexts[0])
        started = time.monotonic()
        total = self._here.examine(iter(data), self._limit, notify)
        # Shares are alike: who takes that much longer than the chief will not answer any more.
        limit = self._ps_cluster.config.wait_seconds + 10 * (time.monotonic() - started)
        done, late = wait(others, timeout=limit, return_when=FIRST_EXCEPTION)
        reports = [np.asarray(other.result()) for other in done]
        if late:
            raise PeerError(
                f"gave up after {limit:.0f} s waiting for the workers to end their share of the "
                "evaluation"
            )
        return np.asarray(np.sum([total, *reports], axis=0))

    def examine_alone(self, notify: Callable[[int], None]) -> Array:
        """All of it on the chief."""
        whole = dataclasses.replace(self._contexts[0], num_shards=1, num_replicas=1)
        data = make_eval_data(self._ps_cluster.experiment, whole)
        return self._here.examine(iter(data), self._limit, notify)
