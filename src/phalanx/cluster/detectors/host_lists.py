"""The flags of TensorFlow 1 programs: --job_name --task_index --ps_hosts --worker_hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.cluster.hosts import from_host_lists
from phalanx.cluster.tf_config import TFConfig

NAMES = ("job_name", "task_index", "ps_hosts", "worker_hosts", "chief_host", "master_host")


def detect(environ: Mapping[str, str], argv: Sequence[str]) -> TFConfig | None:
    """Applies when there is a job name and at least one host list."""
    flags = _read(argv)
    hosts = (flags.get("ps_hosts"), flags.get("worker_hosts"))
    if not flags.get("job_name") or not any(hosts):
        return None
    return from_host_lists(
        job_name=flags["job_name"],
        task_index=flags.get("task_index", "0"),
        ps_hosts=flags.get("ps_hosts", ""),
        worker_hosts=flags.get("worker_hosts", ""),
        chief_host=flags.get("chief_host", flags.get("master_host", "")),
        source="the flags --job_name, --task_index, --ps_hosts and --worker_hosts",
    )


def _read(argv: Sequence[str]) -> dict[str, str]:
    """`--name=value` or `--name value`, with one dash or two, `_` or `-`; the last one counts."""
    found: dict[str, str] = {}
    for place, argument in enumerate(argv):
        if argument == "--":
            break
        if not argument.startswith("-"):
            continue
        name, equals, value = argument.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if name in NAMES:
            following = argv[place + 1] if place + 1 < len(argv) else ""
            found[name] = value if equals else following
    return found
