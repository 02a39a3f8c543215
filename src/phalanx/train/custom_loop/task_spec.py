"""A process's task and its cluster, with the names that programs with a loop of their own use.

This module does not import TensorFlow before it is needed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from phalanx.cluster import Cluster, Role, Task, TFConfig, detect
from phalanx.cluster.detectors.host_lists import from_host_lists
from phalanx.errors import ClusterError

if TYPE_CHECKING:
    from phalanx.train.context import Context
    from phalanx.train.types import UserFunction

Hosts = Sequence[str] | str | None


class TaskSpecDef:
    """One task and its cluster, described by arguments; `TaskSpec()` reads the environment.

    >>> spec = TaskSpecDef("worker", 1, ps_hosts="a:2222", worker_hosts=["b:2222", "c:2222"])
    >>> spec.num_workers, spec.shard_index, spec.is_master()
    (2, 1, False)

    The master (the chief) trains too, and has shard 0; without a master, worker 0 is it:

    >>> TaskSpecDef("worker", 0, None, "a:2222", "b:2222", master="m:2222").shard_index
    1

    Args:
        task_type: The role of this task: `master`, `worker`, `ps` or `evaluator`.
        index: The index of this task within its role.
        trial: The number of the trial, for hyperparameter searches.
        ps_hosts: The addresses of the parameter servers, as a list or separated by commas.
        worker_hosts: The addresses of the workers.
        master: The address of the master, if it is not one of the workers.

    Raises:
        ClusterError: If there is no such role or task, or an address has no port.
    """

    def __init__(
        self,
        task_type: str = "master",
        index: int | str = 0,
        trial: int | None = None,
        ps_hosts: Hosts = None,
        worker_hosts: Hosts = None,
        master: Hosts = None,
    ) -> None:
        ps, workers, chief = (_join(hosts) for hosts in (ps_hosts, worker_hosts, master))
        if ps or workers or chief:
            config = from_host_lists(
                job_name=task_type,
                task_index=str(index),
                ps_hosts=ps,
                worker_hosts=workers,
                chief_host=chief,
                source="the arguments of TaskSpecDef",
            )
        else:
            config = TFConfig(task=Task(Role.parse(task_type), int(index)))
        self._set_config(TFConfig(config.cluster, config.task, int(trial or 0)))

    @classmethod
    def of(cls, config: TFConfig) -> Self:
        """Return the task spec of a TF_CONFIG."""
        spec = cls.__new__(cls)
        spec._set_config(config)
        return spec

    def _set_config(self, config: TFConfig) -> None:
        self.config = config
        """The cluster that trains, and this process's task."""
        self.trial = config.trial
        self._target: str | None = None
        self._context: Context | None = None

    @property
    def type(self) -> str:
        """The role: `master`, `worker`, `ps` or `evaluator`."""
        role = self.config.task.role
        return "master" if role is Role.CHIEF else str(role)

    @property
    def index(self) -> int:
        """The index of this task within its role."""
        return self.config.task.index

    @property
    def ps_hosts(self) -> list[str]:
        """The addresses of the parameter servers."""
        return self.config.cluster.hosts(Role.PS)

    @property
    def worker_hosts(self) -> list[str]:
        """The addresses of the workers, without the master's."""
        return self.config.cluster.hosts(Role.WORKER)

    @property
    def master(self) -> str | None:
        """The address of the master, if it is not one of the workers."""
        return next(iter(self.config.cluster.hosts(Role.CHIEF)), None)

    @property
    def num_workers(self) -> int:
        """How many tasks train, with the master: the first argument of `dataset.shard`."""
        if self._context is not None:
            return self._context.num_shards
        return max(1, len(self.config.cluster.trainers()))

    @property
    def num_ps(self) -> int:
        """How many parameter servers there are."""
        return len(self.config.cluster.tasks(Role.PS))

    @property
    def shard_index(self) -> int:
        """The shard that this task reads: the second argument of `dataset.shard`.

        An evaluator's is out of range on purpose: it reads all data.
        """
        if self._context is not None:
            return self._context.shard
        task, trainers = self.config.task, self.config.cluster.trainers()
        if task.role is Role.EVALUATOR:
            return self.num_workers
        return trainers.index(task) if task in trainers else task.index

    @contextlib.contextmanager
    def reading_shard(self, context: Context) -> Iterator[None]:
        """Report the shard of a context: on ps, the master builds the data of every worker."""
        self._context = context
        try:
            yield
        finally:
            self._context = None

    def is_ps(self) -> bool:
        """Return whether this task is a parameter server."""
        return self.config.task.role is Role.PS

    def is_worker(self) -> bool:
        """Return whether this task is a worker. A master of its own is none, though it trains."""
        return self.config.task.role is Role.WORKER

    def is_master(self) -> bool:
        """Return whether this task is the chief, which alone saves, logs and writes summaries."""
        return self.config.is_chief()

    def is_evaluator(self) -> bool:
        """Return whether this task evaluates and does not train."""
        return self.config.task.role is Role.EVALUATOR

    def use_last_worker_as_evaluator(self) -> TaskSpecDef:
        """Return the task spec with the last worker as the evaluator.

            spec = phalanx.TaskSpec().use_last_worker_as_evaluator()

        Every task of the cluster must use it.

        Raises:
            ClusterError: If there is only one worker, or already an evaluator.
        """
        cluster = self.config.cluster
        workers = cluster.tasks(Role.WORKER)
        if self.num_workers <= 1 or not workers:
            raise ClusterError(
                f"the last worker cannot be the evaluator, because there are {self.num_workers}: "
                "start one worker more, or evaluate without an evaluator"
            )
        last, evaluator = workers[-1], Task(Role.EVALUATOR)
        if cluster.tasks(Role.EVALUATOR):
            raise ClusterError(
                "the cluster already has an evaluator: do not call use_last_worker_as_evaluator"
            )
        addresses = {
            evaluator if task == last else task: at for task, at in cluster.addresses.items()
        }
        task = evaluator if self.config.task == last else self.config.task
        return self.of(replace(self.config, cluster=Cluster(addresses), task=task))

    user_last_worker_as_evaluator = use_last_worker_as_evaluator
    """An old misspelling that programs still use."""

    def create_server(self) -> None:
        """Start the server of this task; a ps serves until training has ended, then exits.

        In a program that builds a TensorFlow 1 graph, a worker goes on to its own sessions.
        Otherwise a worker of a cluster with ps serves the master, and exits like a ps. For
        all-reduce this does nothing, because TensorFlow starts the servers itself.
        """
        if not self.num_ps or self.is_evaluator():
            return
        if self._builds_graph():
            self._start_graph_server()
        elif not self.is_master():
            from phalanx.train.config import RunConfig  # noqa: PLC0415
            from phalanx.train.console import explain_errors, show_log  # noqa: PLC0415
            from phalanx.train.runtime.joining import open_channel  # noqa: PLC0415
            from phalanx.train.runtime.peers import run_server  # noqa: PLC0415
            from phalanx.train.runtime.topology import resolve_topology  # noqa: PLC0415

            explain_errors()
            show_log()
            topology = resolve_topology(self.config, RunConfig())
            run_server(topology, RunConfig(), open_channel(topology))
            sys.exit(0)

    def device_fn(self) -> UserFunction | None:
        """Return a function for `tf.device` in TensorFlow 1 graphs: it puts variables on the ps.

        All other operations run on this task. None if there is no cluster.
        """
        if not self.config.cluster.addresses or self.is_evaluator():
            return None
        from phalanx.train.custom_loop.graph_server import make_device_setter  # noqa: PLC0415

        return make_device_setter(self._graph_config())

    def target(self) -> str | None:
        """Return the target for a TensorFlow 1 session: this task's server, started if needed.

        None if there is no cluster. On a parameter server it does not return: the process serves,
        and exits when every trainer is done.
        """
        if not self.config.cluster.addresses or self.is_evaluator():
            return None
        from phalanx.train.custom_loop.graph_server import wait_for_peers  # noqa: PLC0415

        target = self._start_graph_server()
        wait_for_peers(self._graph_config())
        return target

    def _start_graph_server(self) -> str:
        """Start the server for sessions, once. A ps serves and exits."""
        from phalanx.train.console import explain_errors, show_log  # noqa: PLC0415
        from phalanx.train.custom_loop.graph_server import serve, start_server  # noqa: PLC0415

        explain_errors()
        show_log()
        if self.is_ps():
            serve(self._graph_config())
            sys.exit(0)
        if self._target is None:
            self._target = start_server(self._graph_config())
        return self._target

    def _builds_graph(self) -> bool:
        """Return whether the program has turned eager execution off."""
        tf = sys.modules.get("tensorflow")
        return tf is not None and not tf.compat.v1.executing_eagerly_outside_functions()

    def _graph_config(self) -> TFConfig:
        return replace(self.config, cluster=self.config.cluster.without_evaluators())


def TaskSpec(  # noqa: N802 - people know it as a class
    environ: Mapping[str, str] | None = None,
) -> TaskSpecDef:
    """Return this process's task, from TF_CONFIG or JOB_NAME, TASK_INDEX, PS_HOSTS, and so on.

    >>> spec = TaskSpec({"JOB_NAME": "worker", "TASK_INDEX": "1", "PS_HOSTS": "a:2222",
    ...                  "WORKER_HOSTS": "b:2222,c:2222"})
    >>> spec.is_worker(), spec.shard_index, spec.num_workers
    (True, 1, 2)

    Args:
        environ: The environment; by default that of this process.

    Returns:
        The task spec. If nothing is set, it is that of a single process, which is its own master.
    """
    return TaskSpecDef.of(detect(environ))


def _join(hosts: Hosts) -> str:
    return hosts if isinstance(hosts, str) else ",".join(hosts or ())
