"""Kubernetes: the pods of one Indexed Job behind a headless Service.

The Job's pods are called NAME-0, NAME-1, …, and the Service NAME gives them names in the DNS. The
Job must set PHALANX_SHAPE (Kubernetes does not tell a pod how many others there are), and may set
PHALANX_SERVICE, if the Service is not called as the Job is, and PHALANX_PORT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.cluster.shape import VARIABLE, parse_shape, place, read_port
from phalanx.cluster.spec import PEERS, Cluster
from phalanx.cluster.tf_config import TFConfig, loads
from phalanx.errors import ClusterError

DEFAULT_PORT = 2222


def detect(environ: Mapping[str, str], argv: Sequence[str]) -> TFConfig | None:
    """An Indexed Job without a shape is not a cluster: its pods work each on its own."""
    index = environ.get("JOB_COMPLETION_INDEX", "")
    if not index.isdecimal() or VARIABLE not in environ:
        return None
    hostname = environ.get("HOSTNAME", "")
    job = hostname.removesuffix(f"-{index}")
    if job == hostname:
        raise ClusterError(
            f"JOB_COMPLETION_INDEX is {index}, but HOSTNAME is {hostname!r}: the pods of an "
            f"Indexed Job are called NAME-{index}; do not set hostNetwork or hostname"
        )
    service = environ.get("PHALANX_SERVICE") or job
    port = read_port(environ, DEFAULT_PORT)
    tasks = parse_shape(environ[VARIABLE])
    addresses = {
        task: f"{job}-{number}.{service}:{port}"
        for number, task in enumerate(tasks)
        if task.role in PEERS
    }
    task = place(tasks, int(index), "JOB_COMPLETION_INDEX")
    return loads(TFConfig(Cluster(addresses), task).dumps(), "what Kubernetes says of the cluster")
