"""A process's task and its cluster, with the names that programs with a loop of their own use.

This module does not import TensorFlow before it is needed.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.cluster import Cluster, Role, Task, TFConfig, detect
from phalanx.cluster.detectors.host_lists import from_host_lists
from phalanx.cluster.preflight import check_peers
from phalanx.errors import ClusterError, PeerError

if TYPE_CHECKING:
    from phalanx.train.context import Context
    from phalanx.train.types import UserFunction

Hosts = Sequence[str] | str | None

_WAIT_SECONDS = 300.0
_LEAVE_SECONDS = 60.0


class TaskSpecDef:
    """One task and its cluster, described by arguments; `TaskSpec()` reads the environment.

    >>> spec = TaskSpecDef("worker", 1, ps_hosts="a:2222", worker_hosts=["b:2222", "c:2222"])
    >>> spec.num_workers, spec.shard_index, spec.is_master()
    (2, 1, False)

    The master (the chief) is a worker too, and has shard 0; without a master, worker 0 is it:

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
    def of(cls, config: TFConfig) -> TaskSpecDef:
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
        """Return whether this task trains; the master does too."""
        return self.config.task.role in (Role.CHIEF, Role.WORKER)

    def is_master(self) -> bool:
        """Return whether this task is the chief, which alone saves, logs and writes summaries."""
        return self.config.is_chief()

    def is_evaluator(self) -> bool:
        """Return whether this task evaluates and does not train."""
        return self.config.task.role is Role.EVALUATOR

    def use_last_worker_as_evaluator(self) -> None:
        """Make the last worker the evaluator. Every task of the cluster must call this.

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
        self.config = replace(self.config, cluster=Cluster(addresses), task=task, trial=self.trial)

    user_last_worker_as_evaluator = use_last_worker_as_evaluator
    """An old misspelling that programs still use."""

    def create_server(self) -> None:
        """Serve the master, then exit: on a ps, and on a worker of a cluster with ps.

        On other tasks it does nothing: for all-reduce, TensorFlow starts the servers itself.
        """
        if self.num_ps and not self.is_master() and not self.is_evaluator():
            from phalanx.train.config import RunConfig  # noqa: PLC0415
            from phalanx.train.console import explain_errors, show_log  # noqa: PLC0415
            from phalanx.train.runtime.peers import run_server  # noqa: PLC0415
            from phalanx.train.runtime.topology import resolve_topology  # noqa: PLC0415

            explain_errors()
            show_log()
            run_server(resolve_topology(self.config, RunConfig()), RunConfig())
            sys.exit(0)

    def device_fn(self) -> UserFunction | None:
        """Return a function for `tf.device` in TensorFlow 1 graphs: it puts variables on the ps.

        All other operations run on this task. None if there is no cluster.
        """
        if not self.config.cluster.addresses or self.is_evaluator():
            return None
        import tensorflow as tf  # noqa: PLC0415

        jobs, job, index = self._find_job()
        device_fn: UserFunction = tf.compat.v1.train.replica_device_setter(
            worker_device=f"/job:{job}/task:{index}", cluster=tf.train.ClusterSpec(jobs)
        )
        return device_fn

    def target(self) -> str | None:
        """Return the target for a TensorFlow 1 session: this task's server, started if needed.

        None if there is no cluster. On a parameter server it does not return: the process serves,
        and exits when the master is done.
        """
        if not self.config.cluster.addresses or self.is_evaluator():
            return None
        if self.is_ps():
            self.create_server()
        if self._target is None:
            self._target = self._start_server()
        return self._target

    def _start_server(self) -> str:
        import tensorflow as tf  # noqa: PLC0415

        jobs, job, index = self._find_job()
        server = tf.distribute.Server(tf.train.ClusterSpec(jobs), job_name=job, task_index=index)
        # If the master finished before another worker arrives, its ps would be gone.
        config = TFConfig(self.config.cluster.without_evaluators(), self.config.task)
        silent = [r for r in check_peers(config, timeout=_WAIT_SECONDS, wait=True) if r.reason]
        if silent:
            raise PeerError(
                f"gave up after {_WAIT_SECONDS:.0f} s waiting for {'; '.join(map(str, silent))}"
            )
        if self.is_master():
            atexit.register(_release_ps, config)
        return str(server.target)

    def _find_job(self) -> tuple[dict[str, list[str]], str, int]:
        """Return the jobs of TensorFlow's cluster, and this task's job and index."""
        from phalanx.train.runtime.topology import job_and_index, ps_jobs  # noqa: PLC0415

        cluster = self.config.cluster.without_evaluators()
        jobs = {name: addresses for name, addresses in ps_jobs(cluster).items() if addresses}
        return jobs, *job_and_index(cluster, self.config.task)


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


def _release_ps(config: TFConfig) -> None:
    """Tell the ps to exit when the other workers are gone, or after a time limit."""
    from phalanx.train.runtime.control_channel import Message, MessageType, is_listening, send  # noqa: PLC0415

    cluster = config.cluster
    workers = [task for task in cluster.trainers() if task != config.task]
    deadline = time.monotonic() + _LEAVE_SECONDS
    while time.monotonic() < deadline and any(is_listening(cluster.addresses[w]) for w in workers):
        time.sleep(0.2)
    done = Message(MessageType.DONE, str(config.task))
    send(cluster, cluster.tasks(Role.PS), done, has_ps=True)


def _join(hosts: Hosts) -> str:
    return hosts if isinstance(hosts, str) else ",".join(hosts or ())
