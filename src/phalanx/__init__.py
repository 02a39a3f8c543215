"""Phalanx: one experiment, from a laptop to a cluster.

The public names are loaded when they are first used, so that `import phalanx` stays quick and
does not import TensorFlow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx import spark
    from phalanx.cluster import Cluster, Role, Task, TFConfig, detect
    from phalanx.errors import (
        ClusterError,
        ConfigurationError,
        DataError,
        Interrupted,
        JobError,
        LaunchError,
        PeerError,
        PhalanxError,
        RecordError,
        TrainingError,
        WorkerError,
    )
    from phalanx.train import hooks, layers
    from phalanx.train.config import Mode, RunConfig
    from phalanx.train.context import Context
    from phalanx.train.custom_loop.distributed_session import DistributedSession
    from phalanx.train.custom_loop.task_spec import TaskSpec, TaskSpecDef
    from phalanx.train.experiment import Experiment
    from phalanx.train.runner import Result, run
    from phalanx.train.schedules import LinearScaling

__version__ = "0.1.0"

_HOME = {
    "Cluster": "phalanx.cluster",
    "ClusterError": "phalanx.errors",
    "ConfigurationError": "phalanx.errors",
    "Context": "phalanx.train.context",
    "DataError": "phalanx.errors",
    "DistributedSession": "phalanx.train.custom_loop.distributed_session",
    "Experiment": "phalanx.train.experiment",
    "Interrupted": "phalanx.errors",
    "JobError": "phalanx.errors",
    "LaunchError": "phalanx.errors",
    "LinearScaling": "phalanx.train.schedules",
    "Mode": "phalanx.train.config",
    "PeerError": "phalanx.errors",
    "PhalanxError": "phalanx.errors",
    "RecordError": "phalanx.errors",
    "Result": "phalanx.train.runner",
    "Role": "phalanx.cluster",
    "RunConfig": "phalanx.train.config",
    "TFConfig": "phalanx.cluster",
    "Task": "phalanx.cluster",
    "TaskSpec": "phalanx.train.custom_loop.task_spec",
    "TaskSpecDef": "phalanx.train.custom_loop.task_spec",
    "TrainingError": "phalanx.errors",
    "WorkerError": "phalanx.errors",
    "detect": "phalanx.cluster",
    "run": "phalanx.train.runner",
}

# Modules that are public as they are.
_MODULES = {
    "hooks": "phalanx.train.hooks",
    "layers": "phalanx.train.layers",
    "spark": "phalanx.spark",
}

__all__ = [
    "Cluster",
    "ClusterError",
    "ConfigurationError",
    "Context",
    "DataError",
    "DistributedSession",
    "Experiment",
    "Interrupted",
    "JobError",
    "LaunchError",
    "LinearScaling",
    "Mode",
    "PeerError",
    "PhalanxError",
    "RecordError",
    "Result",
    "Role",
    "RunConfig",
    "TFConfig",
    "Task",
    "TaskSpec",
    "TaskSpecDef",
    "TrainingError",
    "WorkerError",
    "detect",
    "hooks",
    "layers",
    "run",
    "spark",
]


def __getattr__(name: str) -> Any:
    home = _MODULES.get(name) or _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'phalanx' has no attribute {name!r}")
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        if error.name not in ("tensorflow", "keras"):
            raise
        raise ImportError(
            f"phalanx.{name} needs TensorFlow, which is not installed: pip install 'phalanx[cpu]'"
        ) from None
    return module if name in _MODULES else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
