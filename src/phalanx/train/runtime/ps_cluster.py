"""What both engines on parameter servers share: the connection and the data."""

from __future__ import annotations

import logging
import re
import time
from typing import Any

import tensorflow as tf

from phalanx.cluster import Task
from phalanx.errors import PeerError, WorkerError
from phalanx.train.config import RunConfig
from phalanx.train.context import Context
from phalanx.train.experiment import Experiment
from phalanx.train.runtime.control_channel import ControlChannel, MessageType, is_listening
from phalanx.train.runtime.task_data import make_train_data, pass_over
from phalanx.train.runtime.topology import Topology, ps_jobs
from phalanx.train.runtime.worker_data import read_worker_data

CHIEF_DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"

_ASK_AGAIN_SECONDS = 0.1
_PATIENCE = 10
_TOLD = re.compile("error when processing (resource )?closure|Start cancelling closures")


class ParameterServerCluster:
    """A chief's view of its parameter servers and workers."""

    def __init__(
        self, topology: Topology, config: RunConfig, experiment: Experiment, channel: ControlChannel
    ) -> None:
        self.topology = topology
        self.config = config
        self.experiment = experiment
        self.channel = channel
        self.coordinator: Any = None
        self.trainers: tuple[Task, ...] = topology.trainers
        self.worker_data: Any = None
        """The element spec of data that every worker makes itself; None if it can be sent."""

    def connect(self) -> None:
        """Take possession of the cluster."""
        jobs = ps_jobs(self.topology.cluster)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(jobs), task_type="chief", task_id=0, rpc_layer="grpc"
        )
        tf.get_logger().addFilter(_is_not_told_again)
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self.devices = [
            f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(len(jobs["ps"]))
        ]

    @property
    def chief_trains(self) -> bool:
        """Whether the first trainer is this process."""
        return self.trainers[0] == self.topology.task

    @property
    def contexts(self) -> list[Context]:
        """What each trainer reads."""
        return [self.topology.share(self.config, task) for task in self.trainers]

    def open_remote(self, skip: int, passes: int | None) -> Any:
        """An iterator on every worker, over its own share."""
        contexts = self.contexts[1:] if self.chief_trains else self.contexts

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def make() -> Any:
            if self.worker_data is not None:
                return pass_over(read_worker_data(self.worker_data), passes, skip)
            index = tf.distribute.coordinator.experimental_get_current_worker_index()
            shares = [
                lambda context=context: self._make(context, skip, passes) for context in contexts
            ]
            return tf.switch_case(tf.cast(index, tf.int32), shares)

        return iter(self.coordinator.create_per_worker_dataset(make))

    def open_local(self, skip: int, passes: int | None) -> Any:
        """An iterator over the chief's own share."""
        return iter(self._make(self.contexts[0], skip, passes))

    def _make(self, context: Context, skip: int, passes: int | None) -> Any:
        return pass_over(make_train_data(self.experiment, context), passes, skip)

    def check_workers(self, since: float, longest: float) -> None:
        """TensorFlow waits for lost workers without limit: give up when nothing comes for long.

        `since` is when something last came, by `time.monotonic()`; `longest` is what a call to a
        worker has taken at the most: one that is there, and takes that much longer, hangs.
        """
        silent = time.monotonic() - since
        if silent < self.config.wait_seconds:
            return
        addresses = self.topology.cluster.addresses
        workers = [task for task in self.trainers if task != self.topology.task]
        gone = [task for task in workers if not is_listening(addresses[task])]
        names = ", ".join(f"{task} at {addresses[task]}" for task in gone)
        if len(gone) == len(workers):
            raise PeerError(f"no worker has answered for {self.config.wait_seconds:.0f} s: {names}")
        if longest and silent > self.config.wait_seconds + _PATIENCE * longest:
            raise PeerError(
                f"no worker has made a step for {silent:.0f} s, though some are there; gone: "
                f"{names or 'none'} (TensorFlow takes lost workers back when all of them are there)"
            )

    def is_interrupted(self) -> bool:
        """Whether a worker or parameter server was asked to end; what failed there is raised."""
        message = self.channel.wait(0)
        if message is not None and message.word is MessageType.FAILED:
            raise WorkerError(f"{message.sender} failed:\n{message.text}")
        return message is not None and message.word is MessageType.TERMINATED


def fetch(value: Any) -> Any:
    """The result of a scheduled function, or the error that TensorFlow gave it up for.

    A result is handed out before it is made. If its worker is lost meanwhile, whoever asks sees the
    connection break, though another worker will make it. An error that is final is told by being
    one and the same however often one asks.
    """
    seen: Exception | None = None
    while True:
        try:
            return value.fetch()
        except Exception as error:
            if error is seen:
                raise
            seen = error
        time.sleep(_ASK_AGAIN_SECONDS)


def _is_not_told_again(record: logging.LogRecord) -> bool:
    """An error of the program is raised at the chief; TensorFlow would log it for each call too."""
    return not _TOLD.search(record.getMessage())
