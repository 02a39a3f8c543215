"""Detect this process's task and its cluster, whatever started the process."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from phalanx.cluster.detectors import host_lists, kubernetes, slurm
from phalanx.cluster.tf_config import TFConfig, read_variable

Detector = Callable[[Mapping[str, str], Sequence[str]], TFConfig | None]

# The most explicit comes first: a scheduler sets its variables for programs of any kind.
DETECTORS: tuple[Detector, ...] = (
    host_lists.detect_flags,
    read_variable,
    host_lists.detect_variables,
    slurm.detect,
    kubernetes.detect,
)


GROUP = "phalanx.detectors"
"""The entry points with which other packages add detectors."""


def _find_detectors() -> Iterator[Detector]:
    """Yield the built-in detectors, then those of other packages, which are imported if needed."""
    yield from DETECTORS
    # Its import takes longer than all detectors, and most tasks are found by one of the above.
    from importlib.metadata import entry_points  # noqa: PLC0415

    for point in entry_points(group=GROUP):
        yield point.load()


def detect(environ: Mapping[str, str] | None = None, argv: Sequence[str] | None = None) -> TFConfig:
    """Detect this process's cluster and its task in the cluster.

    >>> detect({"JOB_NAME": "ps", "PS_HOSTS": "a:2222", "WORKER_HOSTS": "b:2222"}, []).task
    Task(role=<Role.PS: 'ps'>, index=0)
    >>> detect({}, []) == TFConfig()
    True

    Args:
        environ: The environment variables; by default those of this process.
        argv: The command line without the program; by default that of this process.

    Returns:
        The first description found in the flags `--job_name`, `--task_index`, `--ps_hosts` and
        `--worker_hosts`, in TF_CONFIG, in the variables JOB_NAME, TASK_INDEX, PS_HOSTS and
        WORKER_HOSTS, in those of Slurm, in those of Kubernetes, or by the detector of another
        package; otherwise a single process.

    Raises:
        ClusterError: The description is incomplete or contradicts itself.
    """
    environ = os.environ if environ is None else environ
    argv = sys.argv[1:] if argv is None else argv
    found = (detector(environ, argv) for detector in _find_detectors())
    return next((config for config in found if config is not None), TFConfig())
