"""Kubernetes: the pods of Indexed Jobs behind a headless Service.

With one Job per role, PHALANX_ROLE names the role. The pods are called NAME-worker-0,
NAME-worker-1, … (in a JobSet NAME-worker-0-0, NAME-worker-0-1, …), and the Service NAME gives them
DNS names. With one Job for all tasks, the pods are called NAME-0, NAME-1, …, in the order of the
roles. A Job must set PHALANX_SHAPE, because Kubernetes does not tell a pod how many others exist.
It may set PHALANX_PORT, and PHALANX_SERVICE if the Service is not called NAME.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.cluster.job_environment import SHAPE_VARIABLE, find_task, parse_shape, read_port
from phalanx.cluster.spec import PEERS, Cluster
from phalanx.cluster.tf_config import TFConfig, loads
from phalanx.errors import ClusterError

DEFAULT_PORT = 2222


def detect(environ: Mapping[str, str], argv: Sequence[str]) -> TFConfig | None:
    """Read JOB_COMPLETION_INDEX and PHALANX_SHAPE; without a shape each pod is a single process."""
    index = environ.get("JOB_COMPLETION_INDEX", "")
    if not index.isdecimal() or SHAPE_VARIABLE not in environ:
        return None
    hostname = environ.get("HOSTNAME", "")
    role = environ.get("PHALANX_ROLE")
    middles = (f"-{role}-", f"-{role}-0-") if role else ("-",)
    middle = next((each for each in middles if hostname.endswith(f"{each}{index}")), None)
    if middle is None:
        raise ClusterError(
            f"JOB_COMPLETION_INDEX is {index}, but HOSTNAME is {hostname!r}: the pods of an "
            f"Indexed Job are called NAME{middles[0]}{index}; do not set hostNetwork or hostname"
        )
    job = hostname.removesuffix(f"{middle}{index}")
    service = environ.get("PHALANX_SERVICE") or job
    port = read_port(environ, DEFAULT_PORT)
    tasks = parse_shape(environ[SHAPE_VARIABLE])
    names = {
        task: middle.replace(role, str(task.role)) + str(task.index) if role else f"-{number}"
        for number, task in enumerate(tasks)
    }
    addresses = {
        task: f"{job}{name}.{service}:{port}" for task, name in names.items() if task.role in PEERS
    }
    numbered = [task for task in tasks if role in (None, str(task.role))]
    task = find_task(numbered, int(index), "JOB_COMPLETION_INDEX")
    return loads(TFConfig(Cluster(addresses), task).dumps(), "the cluster described by Kubernetes")
