"""Which of the ways to train this run takes, and what TensorFlow must know for it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import tensorflow as tf

from phalanx.cluster import Cluster, Role, Task, TFConfig
from phalanx.cluster.dispatcher import find_dispatcher
from phalanx.cluster.shape import has_evaluator
from phalanx.cluster.tf_config import VARIABLE
from phalanx.errors import ClusterError, ConfigurationError
from phalanx.train.config import Mode, RunConfig
from phalanx.train.context import Context


class Strategy(StrEnum):
    """The four ways to train."""

    ONE_PROCESS = "in one process"
    ALL_REDUCE = "in step on many"
    ASYNC_PS = "asynchronously on parameter servers"
    SYNC_PS = "in step on parameter servers"

    @property
    def has_ps(self) -> bool:
        """Whether weights are on parameter servers."""
        return self in (Strategy.ASYNC_PS, Strategy.SYNC_PS)


@dataclass(frozen=True)
class Topology:
    """This process's part in the run."""

    strategy: Strategy
    task: Task
    cluster: Cluster
    trainers: tuple[Task, ...]
    has_evaluator: bool = False

    @property
    def is_chief(self) -> bool:
        """Whether this process leads."""
        return self.task == self.cluster.chief()

    def share(self, config: RunConfig, task: Task, replicas_per_task: int = 1) -> Context:
        """What one trainer reads."""
        replicas = len(self.trainers) * replicas_per_task
        if self.strategy.has_ps:
            # There a batch is cut where it is worked on.
            config = config.replace(accumulate=1)
        context = make_context(config, replicas, len(self.trainers), self.trainers.index(task))
        if self.strategy is Strategy.ASYNC_PS:
            return replace(context, examples_per_update=context.batch_size)
        if self.strategy is Strategy.SYNC_PS and config.replicas_to_aggregate:
            update = context.batch_size * config.replicas_to_aggregate
            return replace(context, examples_per_update=update)
        return context


def resolve_topology(tf_config: TFConfig, config: RunConfig) -> Topology:
    """The way that follows from the cluster and the config."""
    cluster = tf_config.cluster.without_evaluators()
    evaluator = bool(tf_config.cluster.tasks(Role.EVALUATOR)) or has_evaluator(os.environ)
    if len(cluster.addresses) <= 1:
        if config.mode is Mode.ASYNC:
            raise ConfigurationError(
                "mode is async, but this is one process: start a cluster with parameter servers "
                "(phalanx run --ps 1 --workers 2 ...), or leave --async out"
            )
        task = Task(Role.CHIEF) if not cluster.addresses else cluster.chief()
        mine = tf_config.task if tf_config.task.role is Role.EVALUATOR else task
        return Topology(Strategy.ONE_PROCESS, mine, cluster, (task,), evaluator)
    if cluster.tasks(Role.PS):
        strategy = Strategy.SYNC_PS if config.mode is Mode.SYNC else Strategy.ASYNC_PS
        if not cluster.trainers(chief_trains=False):
            raise ClusterError(
                "the cluster has parameter servers but no worker beside the chief: add a worker, "
                "or leave the parameter servers out"
            )
        trainers = cluster.trainers(chief_trains=config.chief_trains)
    else:
        if config.mode is Mode.ASYNC:
            raise ConfigurationError(
                "mode is async, but the cluster has no parameter server: add one (--ps 1), or "
                "train in step (--sync)"
            )
        strategy, trainers = Strategy.ALL_REDUCE, cluster.trainers()
    return Topology(strategy, tf_config.task, cluster, tuple(trainers), evaluator)


def make_context(config: RunConfig, replicas: int, shards: int, shard: int) -> Context:
    """The batch each replica takes; a batch that does not divide is an error."""
    parts = replicas * config.accumulate
    if config.global_batch_size % parts:
        below = config.global_batch_size // parts * parts
        raise ConfigurationError(
            f"global_batch_size is {config.global_batch_size}, which {replicas} replicas"
            + (f" with {config.accumulate} parts each" if config.accumulate > 1 else "")
            + f" cannot share evenly: take {below or parts} or {below + parts}"
        )
    return Context(
        num_shards=shards,
        shard=shard,
        batch_size=config.global_batch_size // parts,
        global_batch_size=config.global_batch_size,
        examples_per_update=config.global_batch_size,
        num_replicas=replicas,
        seed=config.seed,
        data_service=find_dispatcher(os.environ),
    )


def find_devices(config: RunConfig) -> list[str]:
    """The devices of this host to train on."""
    there = [device.name for device in tf.config.list_logical_devices()]
    gpus = [name for name in there if ":GPU:" in name]
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
    missing = sorted(set(names) - set(there))
    if missing:
        raise ConfigurationError(f"devices names {missing}, but this host has {there}")
    return names


def make_strategy(devices: list[str]) -> Any:
    """Replicas side by side on the devices of this host."""
    if len(devices) > 1:
        return tf.distribute.MirroredStrategy(devices)
    return tf.distribute.get_strategy()


def join_all_reduce_strategy(topology: Topology) -> Any:
    """Replicas in step with those of other hosts; must come before anything else in TensorFlow."""
    # TensorFlow reads TF_CONFIG when the strategy is made; give it what it understands.
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = TFConfig(topology.cluster, topology.task).dumps()
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except RuntimeError as error:
        if "program startup" not in str(error):
            raise
        raise ConfigurationError(
            "TensorFlow was used before the cluster was joined: make tensors and datasets in the "
            "experiment's methods, or in functions they call, not where the program begins"
        ) from error
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


def ps_jobs(cluster: Cluster) -> dict[str, list[str]]:
    """The cluster as ParameterServerStrategy wants it: whoever leads is called `chief`."""
    chief = cluster.chief()
    workers = [task for task in cluster.tasks(Role.CHIEF, Role.WORKER) if task != chief]
    return {
        "chief": [cluster.addresses[chief]],
        "worker": [cluster.addresses[task] for task in workers],
        "ps": cluster.hosts(Role.PS),
    }


def place_in_jobs(cluster: Cluster, task: Task) -> tuple[str, int]:
    """A task's job and index among `ps_jobs`."""
    address = cluster.addresses[task]
    for job, addresses in ps_jobs(cluster).items():
        if address in addresses:
            return job, addresses.index(address)
    raise ClusterError(f"{task} is not in the cluster")
