"""Phalanx: one experiment, from a laptop to a cluster.

The public names are loaded when they are first used, so that `import phalanx` stays quick and
does not import TensorFlow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.cluster import Cluster, Role, Task, TFConfig, detect
    from phalanx.errors import (
        ClusterError,
        ConfigurationError,
        DataError,
        JobError,
        LaunchError,
        PhalanxError,
        RecordError,
    )

__version__ = "0.1.0"

_HOME = {
    "Cluster": "phalanx.cluster",
    "ClusterError": "phalanx.errors",
    "ConfigurationError": "phalanx.errors",
    "DataError": "phalanx.errors",
    "JobError": "phalanx.errors",
    "LaunchError": "phalanx.errors",
    "PhalanxError": "phalanx.errors",
    "RecordError": "phalanx.errors",
    "Role": "phalanx.cluster",
    "TFConfig": "phalanx.cluster",
    "Task": "phalanx.cluster",
    "detect": "phalanx.cluster",
}

__all__ = [
    "Cluster",
    "ClusterError",
    "ConfigurationError",
    "DataError",
    "JobError",
    "LaunchError",
    "PhalanxError",
    "RecordError",
    "Role",
    "TFConfig",
    "Task",
    "detect",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'phalanx' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
