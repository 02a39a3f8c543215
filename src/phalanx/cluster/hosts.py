"""Clusters described by comma-separated host lists, as TensorFlow 1 programs were."""

from __future__ import annotations

from phalanx.cluster.spec import Cluster, Role, Task
from phalanx.cluster.tf_config import TFConfig, loads
from phalanx.errors import ClusterError


def from_host_lists(
    *,
    job_name: str,
    task_index: str,
    ps_hosts: str,
    worker_hosts: str,
    chief_host: str,
    source: str,
) -> TFConfig:
    """The place of task `task_index` of `job_name`; `source` says in errors where it was read."""
    if not task_index.isdecimal():
        raise ClusterError(
            f"{source} give the task index {task_index!r}: number the tasks of a role from 0"
        )
    cluster = Cluster.of(
        chief=chief_host or None, workers=_split(worker_hosts), ps=_split(ps_hosts)
    )
    try:
        role = Role.parse(job_name)
    except ClusterError as error:
        raise ClusterError(f"{source} cannot be used: {error}") from None
    return loads(TFConfig(cluster, Task(role, int(task_index))).dumps(), source)


def _split(hosts: str) -> list[str]:
    return [host.strip() for host in hosts.split(",") if host.strip()]
