"""A task's place in its cluster, in the words of those who write their own loop.

Nothing here imports TensorFlow before it is needed.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.cluster import Cluster, Role, Task, TFConfig, detect
from phalanx.cluster.detectors.host_lists import from_host_lists
from phalanx.cluster.preflight import check_peers
from phalanx.errors import ClusterError, PeerError

if TYPE_CHECKING:
    from phalanx.train.runtime.topology import Topology

Hosts = Sequence[str] | str | None

_WAIT_SECONDS = 300.0
_LEAVE_SECONDS = 60.0


class TaskSpecDef:
    """One task and its cluster, described by hand; `TaskSpec()` reads the environment instead.

    >>> spec = TaskSpecDef("worker", 1, ps_hosts="a:2222", worker_hosts=["b:2222", "c:2222"])
    >>> spec.num_workers, spec.shard_index, spec.is_master()
    (2, 1, False)

    The master is a worker too and has shard 0; without a master, worker 0 is it:

    >>> TaskSpecDef("worker", 0, None, "a:2222", "b:2222", master="m:2222").shard_index
    1
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
        self._adopt(_describe(task_type, index, trial, ps_hosts, worker_hosts, master))

    @classmethod
    def of(cls, config: TFConfig) -> TaskSpecDef:
        """From what TF_CONFIG, or what stands in for it, says."""
        spec = cls.__new__(cls)
        spec._adopt(config)
        return spec

    def _adopt(self, config: TFConfig) -> None:
        self.config = config
        """The cluster to train on, and this task in it."""
        self.trial = config.trial
        self._target: str | None = None
        self._share: tuple[int, int] | None = None

    @property
    def type(self) -> str:
        """The role's name: `master`, `worker`, `ps` or `evaluator`."""
        role = self.config.task.role
        return "master" if role is Role.CHIEF else str(role)

    @property
    def index(self) -> int:
        """Which of its role this task is, from 0."""
        return self.config.task.index

    @property
    def ps_hosts(self) -> list[str]:
        """The addresses of the parameter servers."""
        return self.config.cluster.hosts(Role.PS)

    @property
    def worker_hosts(self) -> list[str]:
        """The addresses of the workers that train, without the master's."""
        return self.config.cluster.hosts(Role.WORKER)

    @property
    def master(self) -> str | None:
        """The master's address, if it is not one of the workers."""
        return next(iter(self.config.cluster.hosts(Role.CHIEF)), None)

    @property
    def num_workers(self) -> int:
        """How many tasks train, the master among them: what to give to `dataset.shard` first."""
        if self._share is not None:
            return self._share[0]
        return max(1, len(self.config.cluster.tasks(Role.CHIEF, Role.WORKER)))

    @property
    def num_ps(self) -> int:
        """How many parameter servers there are."""
        return len(self.config.cluster.tasks(Role.PS))

    @property
    def shard_index(self) -> int:
        """Which share of the data is this task's: what to give to `dataset.shard` second.

        An evaluator's is out of range on purpose: it reads everything.
        """
        if self._share is not None:
            return self._share[1]
        task, cluster = self.config.task, self.config.cluster
        if task.role is Role.EVALUATOR:
            return self.num_workers
        return task.index + (task.role is Role.WORKER and bool(cluster.tasks(Role.CHIEF)))

    @contextlib.contextmanager
    def reading_share(self, num_workers: int, shard_index: int) -> Iterator[None]:
        """Stand in for another task: on ps, the master makes the data of every worker."""
        self._share = num_workers, shard_index
        try:
            yield
        finally:
            self._share = None

    def is_ps(self) -> bool:
        """Whether this task holds weights."""
        return self.config.task.role is Role.PS

    def is_worker(self) -> bool:
        """Whether this task trains; the master does too."""
        return self.config.task.role in (Role.CHIEF, Role.WORKER)

    def is_master(self) -> bool:
        """Whether this task leads: it alone saves, logs and writes summaries."""
        return self.config.is_chief()

    def is_evaluator(self) -> bool:
        """Whether this task evaluates and does not train."""
        return self.config.task.role is Role.EVALUATOR

    def use_last_worker_as_evaluator(self) -> None:
        """Take the last worker out of the training cluster; every task must ask for it."""
        cluster = self.config.cluster
        workers = cluster.tasks(Role.WORKER)
        if self.num_workers <= 1 or not workers:
            raise ClusterError(
                f"the last worker cannot be the evaluator, for there are {self.num_workers}: start "
                "one worker more, or evaluate without an evaluator"
            )
        last, evaluator = workers[-1], Task(Role.EVALUATOR)
        if cluster.tasks(Role.EVALUATOR):
            raise ClusterError(
                "the cluster has an evaluator already: leave the last worker to train"
            )
        addresses = {
            evaluator if task == last else task: at for task, at in cluster.addresses.items()
        }
        task = evaluator if self.config.task == last else self.config.task
        self.config = TFConfig(
            Cluster(addresses), task, self.trial, self.config.model_dir, self.config.environment
        )

    user_last_worker_as_evaluator = use_last_worker_as_evaluator
    """An old misspelling that programs still use."""

    def create_server(self) -> None:
        """On a ps, and on a worker of a cluster with ps: serve the master, then leave the program.

        Elsewhere it does nothing: in step, TensorFlow starts the servers itself.
        """
        if self.num_ps and not self.is_master() and not self.is_evaluator():
            from phalanx.train.config import RunConfig  # noqa: PLC0415
            from phalanx.train.console import explain_errors, show_log  # noqa: PLC0415
            from phalanx.train.runtime.peers import run_server  # noqa: PLC0415

            explain_errors()
            show_log()
            run_server(self._form(), RunConfig())
            sys.exit(0)

    def device_fn(self) -> Any:
        """For `tf.device` in TensorFlow 1 graphs: variables on the ps, all else on this task."""
        if not self.config.cluster.addresses or self.is_evaluator():
            return None
        import tensorflow as tf  # noqa: PLC0415

        from phalanx.train.runtime.topology import job_and_index, ps_jobs  # noqa: PLC0415

        cluster = self.config.cluster.without_evaluators()
        job, index = job_and_index(cluster, self.config.task)
        return tf.compat.v1.train.replica_device_setter(
            worker_device=f"/job:{job}/task:{index}",
            cluster=tf.train.ClusterSpec({name: at for name, at in ps_jobs(cluster).items() if at}),
        )

    def target(self) -> str | None:
        """For sessions of TensorFlow 1 graphs: this task's own server, started if need be.

        None if there is no cluster to connect to. A ps serves here and does not come back; it ends
        when the master does.
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

        from phalanx.train.runtime.topology import job_and_index, ps_jobs  # noqa: PLC0415

        cluster = self.config.cluster.without_evaluators()
        job, index = job_and_index(cluster, self.config.task)
        jobs = {name: at for name, at in ps_jobs(cluster).items() if at}
        server = tf.distribute.Server(tf.train.ClusterSpec(jobs), job_name=job, task_index=index)
        # A master that is done before another worker has come would take the ps away from it.
        place = TFConfig(cluster, self.config.task)
        silent = [r for r in check_peers(place, timeout=_WAIT_SECONDS, wait=True) if r.reason]
        if silent:
            raise PeerError(
                f"gave up after {_WAIT_SECONDS:.0f} s waiting for {'; '.join(map(str, silent))}"
            )
        if self.is_master():
            atexit.register(_release_ps, place)
        return str(server.target)

    def _form(self) -> Topology:
        from phalanx.train.config import RunConfig  # noqa: PLC0415
        from phalanx.train.runtime.topology import resolve_topology  # noqa: PLC0415

        return resolve_topology(self.config, RunConfig())


def TaskSpec(  # noqa: N802 - people know it as a class
    environ: Mapping[str, str] | None = None,
) -> TaskSpecDef:
    """This process's place, from TF_CONFIG or JOB_NAME, TASK_INDEX, PS_HOSTS, WORKER_HOSTS, …

    >>> spec = TaskSpec({"JOB_NAME": "worker", "TASK_INDEX": "1", "PS_HOSTS": "a:2222",
    ...                  "WORKER_HOSTS": "b:2222,c:2222"})
    >>> spec.is_worker(), spec.shard_index, spec.num_workers
    (True, 1, 2)

    Nothing set is one process on its own, which is its own master.
    """
    return TaskSpecDef.of(detect(environ))


def _release_ps(place: TFConfig) -> None:
    """Once the other workers are gone, or have had their time, let the ps go."""
    from phalanx.train.runtime.control_channel import Message, MessageType, is_listening, send  # noqa: PLC0415

    cluster = place.cluster
    workers = [task for task in cluster.tasks(Role.CHIEF, Role.WORKER) if task != place.task]
    deadline = time.monotonic() + _LEAVE_SECONDS
    while time.monotonic() < deadline and any(is_listening(cluster.addresses[w]) for w in workers):
        time.sleep(0.2)
    done = Message(MessageType.DONE, str(place.task))
    send(cluster, cluster.tasks(Role.PS), done, has_ps=True)


def _describe(
    task_type: str,
    index: int | str,
    trial: int | None,
    ps_hosts: Hosts,
    worker_hosts: Hosts,
    master: Hosts,
) -> TFConfig:
    lists = [_join(hosts) for hosts in (ps_hosts, worker_hosts, master)]
    if not any(lists):
        return TFConfig(task=Task(Role.parse(task_type), int(index)), trial=int(trial or 0))
    found = from_host_lists(
        job_name=task_type,
        task_index=str(index),
        ps_hosts=lists[0],
        worker_hosts=lists[1],
        chief_host=lists[2],
        source="the arguments of TaskSpecDef",
    )
    return TFConfig(found.cluster, found.task, int(trial or 0))


def _join(hosts: Hosts) -> str:
    return hosts if isinstance(hosts, str) else ",".join(hosts or ())
