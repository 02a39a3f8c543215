"""The variables JOB_NAME, TASK_INDEX, PS_HOSTS, WORKER_HOSTS and MASTER_HOST."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.cluster.hosts import from_host_lists
from phalanx.cluster.tf_config import TFConfig


def detect(environ: Mapping[str, str], argv: Sequence[str]) -> TFConfig | None:
    """JOB_NAME alone means nothing: build servers set it too."""
    hosts = {name: environ.get(name, "") for name in ("PS_HOSTS", "WORKER_HOSTS", "MASTER_HOST")}
    if not environ.get("JOB_NAME") or not any(hosts.values()):
        return None
    return from_host_lists(
        job_name=environ["JOB_NAME"],
        task_index=environ.get("TASK_INDEX", "0"),
        ps_hosts=hosts["PS_HOSTS"],
        worker_hosts=hosts["WORKER_HOSTS"],
        chief_host=hosts["MASTER_HOST"],
        source="the variables JOB_NAME, TASK_INDEX, PS_HOSTS, WORKER_HOSTS and MASTER_HOST",
    )
