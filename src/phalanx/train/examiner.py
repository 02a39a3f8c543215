"""The loop over the evaluation data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.train.packing import Tensor
from phalanx.train.reduction import Reduction
from phalanx.train.step import Step
from phalanx.train.weights import Weights


class Examiner:
    """Sums the reports of all batches over all replicas. Replicas that run out of data wait."""

    def __init__(
        self,
        step: Step,
        copies: Sequence[Weights],
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
        read = [(copy.add_tables(copy.read_whole()), copy.read_state()) for copy in self._copies]
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
