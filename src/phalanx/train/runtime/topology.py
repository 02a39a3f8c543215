"""The part of this process in the run, and the cluster as TensorFlow's strategies need it."""

import contextlib
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial

import tensorflow as tf

from phalanx.cluster import Cluster, Role, Task, TFConfig
from phalanx.cluster.job_environment import find_dispatcher, has_evaluator
from phalanx.cluster.tf_config import VARIABLE
from phalanx.errors import ClusterError, ConfigurationError, PeerError
from phalanx.train.config import Mode, RunConfig
from phalanx.train.context import Context
from phalanx.train.types import TFStrategy

LOG = logging.getLogger("phalanx")

# A trainer that is stopped for half a minute, as by a debugger or a busy host, goes on afterwards.
_HEARTBEAT_TIMEOUT_SECONDS = 60.0


class Strategy(StrEnum):
    """How the trainers of a run work together."""

    ONE_PROCESS = "in one process"
    ALL_REDUCE = "synchronously by all-reduce"
    ASYNC_PS = "asynchronously on parameter servers"
    SYNC_PS = "synchronously on parameter servers"

    @property
    def has_ps(self) -> bool:
        return self in (Strategy.ASYNC_PS, Strategy.SYNC_PS)


@dataclass(frozen=True)
class Topology:
    """The part of this process in the run."""

    strategy: Strategy
    task: Task
    cluster: Cluster
    trainers: tuple[Task, ...]
    has_evaluator: bool = False
    divides_evenly: bool = True
    """Whether the global batch must be a multiple of the number of replicas, and each trainer must
    have data."""

    @property
    def is_chief(self) -> bool:
        return self.task == self.cluster.chief()

    def context_for(self, config: RunConfig, task: Task, replicas_per_task: int = 1) -> Context:
        """Return the context of a trainer: its shard of the data and its batch size."""
        replicas = len(self.trainers) * replicas_per_task
        if self.strategy.has_ps:
            # On parameter servers the trainer itself splits its batch for accumulation.
            config = config.replace(accumulate=1)
        shard = self.trainers.index(task)
        context = make_context(
            config, replicas, len(self.trainers), shard, divides_evenly=self.divides_evenly
        )
        count = 1 if self.strategy is Strategy.ASYNC_PS else config.replicas_to_aggregate
        if not self.strategy.has_ps or not count:
            return context
        return replace(context, examples_per_update=context.batch_size * count)

    def count_shares(self, config: RunConfig, context: Context) -> int:
        """Return what the number of trainers must divide; 0 if there may be any number."""
        if config.round_batch_size or not self.divides_evenly:
            return 0
        # A trainer takes a batch for each of its replicas, and for each part that it accumulates.
        return context.global_batch_size * context.num_shards // self._count_parts(config, context)

    def _count_parts(self, config: RunConfig, context: Context) -> int:
        return context.num_replicas * (1 if self.strategy.has_ps else config.accumulate)


def resolve_topology(tf_config: TFConfig, config: RunConfig) -> Topology:
    """Derive the strategy and the trainers from the cluster and the config."""
    cluster = tf_config.cluster.without_evaluators()
    evaluator = bool(tf_config.cluster.tasks(Role.EVALUATOR)) or has_evaluator(os.environ)
    servers = len(cluster.tasks(Role.PS))
    if config.ps_replicas > max(1, servers) and tf_config.task.role is not Role.EVALUATOR:
        raise ConfigurationError(
            f"ps_replicas is {config.ps_replicas}, but the cluster has {servers} parameter servers "
            "to keep replicas on: start as many at least (--ps), or leave --ps-replicas out"
        )
    if len(cluster.addresses) <= 1:
        if config.mode is Mode.ASYNC:
            raise ConfigurationError(
                "mode is async, but this is one process: start a cluster with parameter servers "
                "(phalanx run --ps 1 --workers 2 ...), or remove --async"
            )
        task = Task(Role.CHIEF) if not cluster.addresses else cluster.chief()
        mine = tf_config.task if tf_config.task.role is Role.EVALUATOR else task
        return Topology(Strategy.ONE_PROCESS, mine, cluster, (task,), evaluator)
    if cluster.tasks(Role.PS):
        strategy = Strategy.SYNC_PS if config.mode is Mode.SYNC else Strategy.ASYNC_PS
        if not cluster.trainers(chief_trains=False):
            raise ClusterError(
                "the cluster has parameter servers but no worker beside the chief: add a worker, "
                "or remove the parameter servers"
            )
        trainers = cluster.trainers(chief_trains=config.chief_trains)
    else:
        if config.mode is Mode.ASYNC:
            raise ConfigurationError(
                "mode is async, but the cluster has no parameter server: add one (--ps 1), or "
                "train synchronously (--sync)"
            )
        strategy, trainers = Strategy.ALL_REDUCE, cluster.trainers()
    return Topology(strategy, tf_config.task, cluster, tuple(trainers), evaluator)


def make_context(
    config: RunConfig, replicas: int, shards: int, shard: int, *, divides_evenly: bool = True
) -> Context:
    """Divide the global batch among the replicas; raise an error if it must divide evenly."""
    parts, size = replicas * config.accumulate, config.global_batch_size
    below = size // parts * parts
    if size % parts and config.round_batch_size:
        size = below or parts
        if shard == 0:
            LOG.info("global_batch_size is %d, so that %d replicas share it evenly", size, replicas)
    if size % parts and divides_evenly:
        raise ConfigurationError(
            f"global_batch_size is {size}, which {replicas} replicas"
            + (f" with {config.accumulate} parts each" if config.accumulate > 1 else "")
            + f" cannot share evenly: take {below or parts} or {below + parts}"
        )
    return Context(
        num_shards=shards,
        shard=shard,
        batch_size=max(1, size // parts),
        global_batch_size=size,
        examples_per_update=size,
        num_replicas=replicas,
        seed=config.seed,
        data_service=find_dispatcher(os.environ),
    )


def find_devices(config: RunConfig) -> list[str]:
    """Return the names of the devices of this host to train on."""
    available = [device.name for device in tf.config.list_logical_devices()]
    gpus = [name for name in available if ":GPU:" in name]
    if config.devices is None:
        return gpus or ["/device:CPU:0"]
    if isinstance(config.devices, int):
        if not 0 <= config.devices <= len(gpus):
            raise ConfigurationError(
                f"devices is {config.devices}, but this host has {len(gpus)} GPUs"
            )
        return gpus[: config.devices] or ["/device:CPU:0"]
    devices = (config.devices,) if isinstance(config.devices, str) else config.devices
    names = [f"/device:{name.removeprefix('/device:').upper()}" for name in devices]
    missing = sorted(set(names) - set(available))
    if missing:
        raise ConfigurationError(f"devices is {missing}, but this host has {available}")
    return names


def join_all_reduce_strategy(topology: Topology, wait_seconds: float) -> TFStrategy:
    """Return the all-reduce strategy over all hosts; call it before any other TensorFlow code.

    Raises:
        PeerError: Another trainer has not joined after `wait_seconds`.
    """
    # TensorFlow reads TF_CONFIG when the strategy is made, and knows fewer roles than we do.
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = TFConfig(topology.cluster, topology.task).dumps()
    try:
        with _limit_coordination(wait_seconds):
            return tf.distribute.MultiWorkerMirroredStrategy()
    except tf.errors.DeadlineExceededError as error:
        raise PeerError(
            f"gave up after {wait_seconds:.0f} s waiting for all trainers to join: "
            f"{error.message.partition('Additional')[0].strip()}"
        ) from None
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise ConfigurationError(
            "TensorFlow was used before this process joined the cluster: make tensors and datasets "
            "in the experiment's methods, or in functions they call, not at the top of the program"
        ) from error
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


@contextlib.contextmanager
def _limit_coordination(wait_seconds: float) -> Iterator[None]:
    """Set the limits of the service with which TensorFlow's trainers find each other.

    By default they wait an hour for each other, and a trainer without a heartbeat for 10 s, as one
    that was stopped, ends the run of all.
    """
    # The strategy configures the service itself, and has no argument for its limits.
    from tensorflow.python.eager import context  # noqa: PLC0415

    eager = context.context()
    configure = eager.configure_coordination_service
    eager.configure_coordination_service = partial(
        configure,
        cluster_register_timeout_in_ms=int(wait_seconds * 1000),
        heartbeat_timeout_in_ms=int(_HEARTBEAT_TIMEOUT_SECONDS * 1000),
    )
    try:
        yield
    finally:
        del eager.configure_coordination_service


def ps_jobs(cluster: Cluster) -> dict[str, list[str]]:
    """Return the jobs for ParameterServerStrategy, in which the chief is always `chief`."""
    chief, *workers = cluster.trainers()
    return {
        "chief": [cluster.addresses[chief]],
        "worker": [cluster.addresses[task] for task in workers],
        "ps": cluster.hosts(Role.PS),
    }


def job_and_index(cluster: Cluster, task: Task) -> tuple[str, int]:
    """Return the job and the index of a task in `ps_jobs`."""
    address = cluster.addresses[task]
    for job, addresses in ps_jobs(cluster).items():
        if address in addresses:
            return job, addresses.index(address)
    raise ClusterError(f"{task} is not in the cluster")
