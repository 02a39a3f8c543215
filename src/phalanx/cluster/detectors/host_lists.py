"""Comma-separated host lists, in the flags or the environment of TensorFlow 1 programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.cluster.spec import Cluster, Role, Task
from phalanx.cluster.tf_config import TFConfig, loads
from phalanx.errors import ClusterError

_FLAGS = ("job_name", "task_index", "ps_hosts", "worker_hosts", "chief_host", "master_host")


def detect_flags(environ: Mapping[str, str], argv: Sequence[str]) -> TFConfig | None:
    """Read --job_name, --task_index, --ps_hosts, --worker_hosts and --chief_host."""
    flags = _read_flags(argv)
    if not flags.get("job_name") or not (flags.get("ps_hosts") or flags.get("worker_hosts")):
        return None
    flags.setdefault("chief_host", flags.pop("master_host", ""))
    source = "the flags --job_name, --task_index, --ps_hosts and --worker_hosts"
    return from_host_lists(**flags, source=source)


def detect_variables(environ: Mapping[str, str], argv: Sequence[str]) -> TFConfig | None:
    """Read JOB_NAME, TASK_INDEX, PS_HOSTS, WORKER_HOSTS and MASTER_HOST."""
    hosts = {name: environ.get(name, "") for name in ("PS_HOSTS", "WORKER_HOSTS", "MASTER_HOST")}
    # Build servers set JOB_NAME too: alone it means nothing.
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


def from_host_lists(
    *,
    job_name: str,
    task_index: str = "0",
    ps_hosts: str = "",
    worker_hosts: str = "",
    chief_host: str = "",
    source: str,
) -> TFConfig:
    """Return the cluster and its task `task_index` of `job_name`; errors name the `source`."""
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


def _read_flags(argv: Sequence[str]) -> dict[str, str]:
    """Read `--name=value` and `--name value`, with one dash or two, `_` or `-`; the last wins."""
    found: dict[str, str] = {}
    for position, argument in enumerate(argv):
        if argument == "--":
            break
        if not argument.startswith("-"):
            continue
        name, equals, value = argument.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if name in _FLAGS:
            following = argv[position + 1] if position + 1 < len(argv) else ""
            found[name] = value if equals else following
    return found


def _split(hosts: str) -> list[str]:
    return [host.strip() for host in hosts.split(",") if host.strip()]
