"""An evaluation shared by the chief and the workers of a cluster with parameter servers."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.errors import PeerError
from phalanx.train.context import Context
from phalanx.train.examiner import Examiner
from phalanx.train.feed import make_eval_data
from phalanx.train.own_data import can_travel
from phalanx.train.packing import Tensor
from phalanx.train.servers import CHIEF_DEVICE, Servers
from phalanx.train.step import Step
from phalanx.train.weights import Weights

Array = np.ndarray[Any, Any]


class Panel:
    """Each member takes its share of the evaluation data; what they report is added up.

    The chief is the first member, whether it trains or not. The share of another member is one call
    without any state, so that it may be made again, by whoever is there.
    """

    def __init__(self, servers: Servers, step: Step, weights: Weights) -> None:
        self._servers = servers
        self._limit = servers.config.eval_steps or 2**31 - 1
        workers = len(servers.trainers) - servers.chief_trains
        self._contexts = [
            Context(
                num_shards=workers + 1,
                shard=shard,
                batch_size=servers.contexts[0].batch_size,
                global_batch_size=servers.config.global_batch_size,
                num_replicas=workers + 1,
                seed=servers.config.seed,
            )
            for shard in range(workers + 1)
        ]
        self._shared: bool | None = None
        self._here = Examiner(step, [weights], [CHIEF_DEVICE])
        self._there = Examiner(step, [weights], [None])

    def is_shared(self) -> bool:
        """Whether there is something to share, and it can be sent to the workers."""
        if self._shared is None:
            with tf.init_scope():  # This may be asked while a function is traced.
                make = partial(make_eval_data, self._servers.experiment, self._contexts[0])
                data = make()
                self._shared = data is not None and can_travel(data, make)
        return self._shared

    @property
    def members(self) -> range:
        """The numbers of the members beside the chief."""
        return range(1, len(self._contexts))

    def examine_there(self, member: Tensor) -> Tensor:
        """The report of a member's share: to be traced, and run by that member."""
        shares = [
            lambda context=context: make_eval_data(self._servers.experiment, context)
            for context in self._contexts
        ]
        return self._there.examine_all(tf.switch_case(member, shares), self._limit)

    def examine(self, others: Sequence[Future[Any]], notify: Callable[[int], None]) -> Array:
        """Do the chief's share while the others do theirs; the sum of all reports."""
        data = make_eval_data(self._servers.experiment, self._contexts[0])
        started = time.monotonic()
        total = self._here.examine(iter(data), self._limit, notify)
        # Shares are alike: who takes that much longer than the chief will not answer any more.
        limit = self._servers.config.wait_seconds + 10 * (time.monotonic() - started)
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
        data = make_eval_data(self._servers.experiment, whole)
        return self._here.examine(iter(data), self._limit, notify)
