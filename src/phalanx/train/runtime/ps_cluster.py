"""The chief's connection to its parameter servers and workers, which both ps engines share."""

import logging
import re
import time

import tensorflow as tf

from phalanx.cluster import Task
from phalanx.errors import PeerError, WorkerError
from phalanx.train.config import RunConfig
from phalanx.train.context import Context
from phalanx.train.experiment import Experiment
from phalanx.train.runtime.control_channel import ControlChannel, MessageType, is_listening
from phalanx.train.runtime.task_data import make_train_data, repeat_and_skip
from phalanx.train.runtime.topology import Topology, ps_jobs
from phalanx.train.runtime.worker_data import read_worker_data
from phalanx.train.types import (
    ClusterCoordinator,
    Dataset,
    DatasetIterator,
    ElementSpec,
    RemoteValue,
    Tensor,
)

CHIEF_DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"

_RETRY_SECONDS = 0.1
# A worker that takes this many times longer than the longest call so far hangs.
_HANG_FACTOR = 10
_CLOSURE_ERROR = re.compile("error when processing (resource )?closure|Start cancelling closures")


class ParameterServerCluster:
    """The chief's connection to its parameter servers and workers."""

    def __init__(
        self, topology: Topology, config: RunConfig, experiment: Experiment, channel: ControlChannel
    ) -> None:
        self.topology = topology
        self.config = config
        self.experiment = experiment
        self.channel = channel
        self.coordinator: ClusterCoordinator = None
        self.trainers: tuple[Task, ...] = topology.trainers
        self.worker_data: ElementSpec = None
        """The element spec of worker data; None if the chief can send the dataset."""

    def connect(self) -> None:
        """Connect to the servers, whose tasks this process then controls."""
        jobs = ps_jobs(self.topology.cluster)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(jobs), task_type="chief", task_id=0, rpc_layer="grpc"
        )
        tf.get_logger().addFilter(_is_no_closure_error)
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        self.devices = [
            f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(len(jobs["ps"]))
        ]

    @property
    def chief_trains(self) -> bool:
        """Whether this process, the chief, is a trainer (the first one)."""
        return self.trainers[0] == self.topology.task

    @property
    def contexts(self) -> list[Context]:
        """The context of each trainer."""
        return [self.topology.context_for(self.config, task) for task in self.trainers]

    def open_remote(self, skip: int, epochs: int | None) -> DatasetIterator:
        """Open on every worker an iterator over its shard."""
        contexts = self.contexts[1:] if self.chief_trains else self.contexts

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def make() -> Dataset:
            if self.worker_data is not None:
                return repeat_and_skip(read_worker_data(self.worker_data), epochs, skip)
            index = tf.distribute.coordinator.experimental_get_current_worker_index()
            shards = [
                lambda context=context: self._make(context, skip, epochs) for context in contexts
            ]
            return tf.switch_case(tf.cast(index, tf.int32), shards)

        return iter(self.coordinator.create_per_worker_dataset(make))

    def open_local(self, skip: int, epochs: int | None) -> DatasetIterator:
        """Open an iterator over the chief's shard."""
        return iter(self._make(self.contexts[0], skip, epochs))

    def _make(self, context: Context, skip: int, epochs: int | None) -> Dataset:
        return repeat_and_skip(make_train_data(self.experiment, context), epochs, skip)

    def check_workers(self, since: float, longest: float) -> None:
        """Raise a PeerError if the workers are lost: TensorFlow waits for them without limit.

        The last result came at `since`; the longest call so far has taken `longest` seconds.
        """
        idle = time.monotonic() - since
        if idle < self.config.wait_seconds:
            return
        addresses = self.topology.cluster.addresses
        workers = [task for task in self.trainers if task != self.topology.task]
        lost = [task for task in workers if not is_listening(addresses[task])]
        names = ", ".join(f"{task} at {addresses[task]}" for task in lost)
        if len(lost) == len(workers):
            raise PeerError(
                f"no worker has responded for {self.config.wait_seconds:.0f} s: {names}"
            )
        if longest and idle > self.config.wait_seconds + _HANG_FACTOR * longest:
            raise PeerError(
                f"no worker has finished a step for {idle:.0f} s, though some are running; lost: "
                f"{names or 'none'} (TensorFlow resumes when all lost workers are running again)"
            )

    def is_interrupted(self) -> bool:
        """Whether a worker or ps received SIGTERM; raise a WorkerError if one failed."""
        message = self.channel.wait(0)
        if message is not None and message.type is MessageType.FAILED:
            raise WorkerError(f"{message.sender} failed:\n{message.text}")
        return message is not None and message.type is MessageType.TERMINATED


def fetch(value: RemoteValue) -> Tensor:
    """Return the result of a scheduled function, or raise its error.

    When the worker of a result is lost, `RemoteValue.fetch` raises an error of the connection,
    though another worker will compute the result. Only an error that is final is raised twice as
    the same object.
    """
    seen: Exception | None = None
    while True:
        try:
            return value.fetch()
        except Exception as error:
            if error is seen:
                raise
            seen = error
        time.sleep(_RETRY_SECONDS)


def _is_no_closure_error(record: logging.LogRecord) -> bool:
    """Filter what TensorFlow logs for each call: the chief raises the same error once."""
    return not _CLOSURE_ERROR.search(record.getMessage())
