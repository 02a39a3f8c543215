"""Comma-separated host lists, in the flags or the environment of TensorFlow 1 programs."""

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
    names = ("JOB_NAME", "TASK_INDEX", "PS_HOSTS", "WORKER_HOSTS", "MASTER_HOST")
    found = {name.lower(): environ[name] for name in names if name in environ}
    found["chief_host"] = found.pop("master_host", "")
    # Build servers set JOB_NAME too: alone it means nothing.
    hosts = ("ps_hosts", "worker_hosts", "chief_host")
    if not found.get("job_name") or not any(found.get(name) for name in hosts):
        return None
    return from_host_lists(**found, source=f"the variables {', '.join(names[:-1])} and {names[-1]}")


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
        given = f"{source} give the task index {task_index!r}"
        raise ClusterError(f"{given}: number the tasks of a role from 0")
    workers, ps = _split(worker_hosts), _split(ps_hosts)
    cluster = Cluster.of(chief=chief_host or None, workers=workers, ps=ps)
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
        name, equals, value = argument.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if argument.startswith("-") and name in _FLAGS:
            following = argv[position + 1] if position + 1 < len(argv) else ""
            found[name] = value if equals else following
    return found


def _split(hosts: str) -> list[str]:
    return [host.strip() for host in hosts.split(",") if host.strip()]
