"""Find out this process's place in its cluster from whatever started it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

from phalanx.cluster.detectors import flags, host_variables, kubernetes, slurm, tf_config_variable
from phalanx.cluster.tf_config import TFConfig

Detector = Callable[[Mapping[str, str], Sequence[str]], TFConfig | None]

# The most explicit first: a scheduler's variables may be there without being meant for us.
DETECTORS: tuple[Detector, ...] = (
    flags.detect,
    tf_config_variable.detect,
    host_variables.detect,
    slurm.detect,
    kubernetes.detect,
)


def detect(environ: Mapping[str, str] | None = None, argv: Sequence[str] | None = None) -> TFConfig:
    """This process's cluster and its task in it; nothing set: one process on its own.

    >>> detect({"JOB_NAME": "ps", "PS_HOSTS": "a:2222", "WORKER_HOSTS": "b:2222"}, []).task
    Task(role=<Role.PS: 'ps'>, index=0)
    >>> detect({}, []) == TFConfig()
    True
    """
    environ = os.environ if environ is None else environ
    argv = sys.argv[1:] if argv is None else argv
    for detector in DETECTORS:
        found = detector(environ, argv)
        if found is not None:
            return found
    return TFConfig()
