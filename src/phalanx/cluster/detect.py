"""Detect this process's task and its cluster, whatever started the process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

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
        WORKER_HOSTS, in those of Slurm, or in those of Kubernetes; otherwise a single process.

    Raises:
        ClusterError: The description is incomplete or contradicts itself.
    """
    environ = os.environ if environ is None else environ
    argv = sys.argv[1:] if argv is None else argv
    for detector in DETECTORS:
        found = detector(environ, argv)
        if found is not None:
            return found
    return TFConfig()
