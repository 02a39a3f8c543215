"""The chief's connection to its parameter servers and workers, which both ps engines share."""

import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.coordinator.coordinator_context import (
    get_current_dispatch_context,
)

from phalanx.cluster import Role, Task
from phalanx.errors import PeerError, WorkerError
from phalanx.train.config import RunConfig
from phalanx.train.context import Context
from phalanx.train.experiment import Experiment
from phalanx.train.runtime.control_channel import ControlChannel, is_listening
from phalanx.train.runtime.joining import join
from phalanx.train.runtime.messages import MessageType
from phalanx.train.runtime.task_data import drop_empty_batches, make_train_data, repeat_and_skip
from phalanx.train.runtime.topology import Topology
from phalanx.train.runtime.worker_data import read_worker_data
from phalanx.train.runtime.worker_recovery import WorkerRecovery
from phalanx.train.types import (
    ClusterCoordinator,
    Dataset,
    DatasetIterator,
    ElementSpec,
    RemoteValue,
    Tensor,
    TFFunction,
    TFVariable,
)

LOG = logging.getLogger("phalanx")

CHIEF_DEVICE = "/job:chief/replica:0/task:0/device:CPU:0"

_RETRY_SECONDS = 0.1
# A worker that takes this many times longer than the longest call so far hangs.
_HANG_FACTOR = 10
_CLOSURE_ERROR = re.compile("error when processing (resource )?closure|Start cancelling closures")


NUMBER_SPEC = tf.TensorSpec([], tf.int64)
"""The number of a batch."""


@dataclass(frozen=True)
class DataWindow:
    """Which part of its shard each trainer reads.

    Attributes:
        passes: How many passes over the data have been completed.
        skip: How many batches of the next one have been read.
        skips: The same for each trainer, if these have read different numbers of batches.
        epochs: How many passes to read; None for no end.
        drops_empty: Whether to leave out batches without examples.
        first: The number of the first batch: an element is then a number and a batch. None if
            batches are not numbered.
        is_served: Whether a data service gives nobody the same batch twice, so that a worker that
            was lost need not skip what it has used.
    """

    passes: int
    skip: int
    epochs: int | None = None
    drops_empty: bool = False
    skips: tuple[int, ...] = ()
    first: int | None = None
    is_served: bool = False

    def of(self, trainer: int) -> "DataWindow":
        """Return the window of one trainer."""
        return replace(self, skip=self.skips[trainer], skips=()) if self.skips else self

    def element_spec(self, spec: ElementSpec) -> ElementSpec:
        """Return what the elements of such data are, if those of the dataset are `spec`."""
        return spec if self.first is None else (NUMBER_SPEC, spec)

    def apply(self, data: Dataset, used: Tensor | None = None) -> Dataset:
        """Return this part of a dataset that begins with the order of the right pass.

        A worker that was lost has used some batches of the part already.
        """
        skip = self.skip if used is None or self.is_served else self.skip + used
        data = repeat_and_skip(data, self.epochs, skip)
        data = drop_empty_batches(data) if self.drops_empty else data
        if self.first is None:
            return data
        start = tf.constant(self.first, tf.int64) if used is None else self.first + used
        return tf.data.Dataset.zip((tf.data.Dataset.range(start, tf.int64.max), data))


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
        self.worker_data_name = "train"
        """Measures how long the chief waits for its own data."""
        self.is_data_served = False
        """Whether a data service gives each trainer what nobody has had before."""
        self._count_used: Callable[[int], int] | None = None
        self._used: TFVariable | None = None

    def connect(self) -> None:
        """Connect to the servers, whose tasks this process then controls."""
        tf.get_logger().addFilter(_is_no_closure_error)
        strategy = join(self.topology, self.config.wait_seconds)
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        addresses = self.topology.cluster.addresses
        self._recovery = WorkerRecovery(
            self.coordinator,
            [addresses[task] for task in self._workers()],
            self.topology.cluster.hosts(Role.PS),
        )
        servers = len(self.topology.cluster.tasks(Role.PS))
        self.devices = [f"/job:ps/replica:0/task:{index}/device:CPU:0" for index in range(servers)]

    def watch_workers(
        self, on_lost_call: Callable[[RemoteValue], None], on_lost_worker: Callable[[], None]
    ) -> None:
        """Call a function when a worker is lost: see `WorkerRecovery.watch`."""
        self._recovery.watch(on_lost_call, on_lost_worker)

    def find_lost_workers(self) -> list[Task]:
        """Return the workers that do not listen."""
        addresses = self.topology.cluster.addresses
        return [task for task in self._workers() if not is_listening(addresses[task])]

    def _workers(self) -> list[Task]:
        """Return the tasks that serve the chief as workers, whether they train or not."""
        tasks = self.topology.cluster.trainers()
        return [task for task in tasks if task != self.topology.cluster.chief()]

    @property
    def chief_trains(self) -> bool:
        """Whether this process, the chief, is a trainer (the first one)."""
        return self.trainers[0] == self.topology.task

    @cached_property
    def contexts(self) -> list[Context]:
        """The context of each trainer."""
        return [self.topology.context_for(self.config, task) for task in self.trainers]

    def open_remote(
        self, window: DataWindow, constants: Sequence[TFVariable] = ()
    ) -> DatasetIterator:
        """Open on every worker an iterator over its shard.

        With constants, an element is a batch and their values, which each worker fetches once.
        """
        contexts = self.contexts[1:] if self.chief_trains else self.contexts
        self._reset_used(len(contexts))

        def make(number: int) -> Dataset:
            used = None if self._used is None else self._used[number]
            part = window.of(number + int(self.chief_trains))
            if self.worker_data is not None:
                name = self.worker_data_name
                data = part.apply(read_worker_data(self.worker_data, name, part.passes), used)
            else:
                data = self._make(contexts[number], part, used)
            return _add_constants(data, constants)

        return iter(WorkerDatasets.make(self.coordinator, make, len(contexts)))

    def _reset_used(self, workers: int) -> None:
        """Note that no worker has used a batch of the window, if anybody wants to know that."""
        if self._count_used is not None and self._used is None:
            with tf.device(self.devices[0]):
                self._used = tf.Variable(tf.zeros([workers], tf.int64), trainable=False)
        if self._used is not None:
            self._used.assign(tf.zeros_like(self._used))

    def continue_data(self, count_used: Callable[[int], int]) -> None:
        """Let a worker that was lost, and is back, read on after the batches that it has used.

        By default it reads its data again from the start of the window. `count_used` returns how
        many batches of the window the steps of a trainer have used. Call it before `open_remote`.
        """
        self._count_used = count_used

        def prepare(number: int) -> None:
            trainer = number + int(self.chief_trains)
            if trainer < len(self.trainers):
                used = count_used(trainer)
                if self._used is not None:
                    self._used.scatter_nd_update([[number]], tf.constant([used], tf.int64))
                LOG.info("%s is back, and reads on after %d batches", self.trainers[trainer], used)

        self._recovery.prepare_data(prepare)

    def open_local(
        self, window: DataWindow, constants: Sequence[TFVariable] = ()
    ) -> DatasetIterator:
        """Open an iterator over the chief's shard, with constants as on the workers."""
        return iter(_add_constants(self._open_local(window.of(0)), constants))

    def _open_local(self, window: DataWindow) -> Dataset:
        make = partial(self._make, self.contexts[0], window)
        if self.worker_data is not None:
            return make()
        # Made like the workers' data: in a graph, a pipeline has another order.
        spec = make_train_data(self.experiment, self.contexts[0]).element_spec
        function = tf.function(lambda: tf.data.experimental.to_variant(make()), autograph=False)
        # Traced anew for each pass: a call of the function itself would warn of that.
        variant = function.get_concrete_function()()
        return tf.data.experimental.from_variant(variant, window.element_spec(spec))

    def _make(self, context: Context, window: DataWindow, used: Tensor | None = None) -> Dataset:
        data = make_train_data(self.experiment, replace(context, epoch=window.passes))
        return window.apply(data, used)

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


class WorkerDatasets:
    """The function that makes the dataset of each worker.

    The coordinator takes one function for all workers, whose graph would have the datasets of all.
    It calls this object on each worker instead, which calls the function of that worker.
    """

    def __init__(self, functions: Sequence[TFFunction]) -> None:
        self._functions = functions
        self.structured_outputs = functions[0].structured_outputs

    @classmethod
    def make(
        cls, coordinator: ClusterCoordinator, make: Callable[[int], Dataset], count: int
    ) -> Any:
        """Return the dataset of the coordinator that `make` makes for each worker.

        Workers above `count` get the last one.
        """
        functions = [
            tf.function(partial(make, number), autograph=False).get_concrete_function()
            for number in range(count)
        ]
        dataset = coordinator.create_per_worker_dataset(functions[0])
        dataset._dataset_fn = cls(functions)
        return dataset

    def __call__(self) -> Dataset:
        # No public function tells the worker outside of a graph.
        number = get_current_dispatch_context().worker_index
        return self._functions[min(number, len(self._functions) - 1)]()


def _add_constants(data: Dataset, constants: Sequence[TFVariable]) -> Dataset:
    """Put the values of variables beside each batch; they are read only once."""
    if not constants:
        return data
    values = tuple(constant.read_value() for constant in constants)
    return tf.data.Dataset.zip((data, tf.data.Dataset.from_tensors(values).repeat()))


def fetch(value: RemoteValue) -> Tensor:
    """Return the result of a scheduled function, or raise its error.

    When the worker of a result is lost, `RemoteValue.fetch` raises an error of the connection,
    though another worker will compute the result. Only an error that is final is raised twice as
    the same object. Between two statements of TensorFlow, a result with an error looks as if the
    function had returned nothing, which none of ours does.
    """
    seen: Exception | None = None
    while True:
        try:
            if (result := value.fetch()) is not None:
                return result
        except Exception as error:
            if error is seen:
                raise
            seen = error
        time.sleep(_RETRY_SECONDS)


def _is_no_closure_error(record: logging.LogRecord) -> bool:
    """Filter what TensorFlow logs for each call: the chief raises the same error once."""
    return not _CLOSURE_ERROR.search(record.getMessage())
