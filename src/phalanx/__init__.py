"""Phalanx: one program, from a laptop to a cluster.

The public names are loaded when they are first used: `import phalanx` is quick and does not import
TensorFlow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx import join_on_import
from phalanx.lazy_names import lazy_names

if TYPE_CHECKING:
    from phalanx import spark as spark
    from phalanx.cluster import Cluster as Cluster
    from phalanx.cluster import Role as Role
    from phalanx.cluster import Task as Task
    from phalanx.cluster import TFConfig as TFConfig
    from phalanx.cluster import detect as detect
    from phalanx.errors import ArgumentError as ArgumentError
    from phalanx.errors import CheckpointError as CheckpointError
    from phalanx.errors import ClusterError as ClusterError
    from phalanx.errors import ConfigurationError as ConfigurationError
    from phalanx.errors import DataError as DataError
    from phalanx.errors import DivergenceError as DivergenceError
    from phalanx.errors import Interrupted as Interrupted
    from phalanx.errors import JobError as JobError
    from phalanx.errors import LaunchError as LaunchError
    from phalanx.errors import LeaseError as LeaseError
    from phalanx.errors import NotFoundError as NotFoundError
    from phalanx.errors import OutputGoneError as OutputGoneError
    from phalanx.errors import PeerError as PeerError
    from phalanx.errors import PhalanxError as PhalanxError
    from phalanx.errors import RecordError as RecordError
    from phalanx.errors import SaveError as SaveError
    from phalanx.errors import TrainingError as TrainingError
    from phalanx.errors import WorkerError as WorkerError
    from phalanx.launch.functions.launcher import launch_local as launch_local
    from phalanx.train import hooks as hooks
    from phalanx.train import layers as layers
    from phalanx.train.config import Mode as Mode
    from phalanx.train.config import RunConfig as RunConfig
    from phalanx.train.context import Context as Context
    from phalanx.train.custom_loop.distributed_session import (
        DistributedSession as DistributedSession,
    )
    from phalanx.train.custom_loop.task_spec import TaskSpec as TaskSpec
    from phalanx.train.custom_loop.task_spec import TaskSpecDef as TaskSpecDef
    from phalanx.train.experiment import Experiment as Experiment
    from phalanx.train.keras_fit.functions import evaluate as evaluate
    from phalanx.train.keras_fit.functions import fit as fit
    from phalanx.train.keras_fit.functions import predict as predict
    from phalanx.train.runner import run as run
    from phalanx.train.schedules import LinearScaling as LinearScaling
    from phalanx.train.task_run import Result as Result
    from phalanx.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "phalanx.cluster": ("Cluster", "Role", "TFConfig", "Task", "detect"),
        "phalanx.errors": (
            "ArgumentError",
            "CheckpointError",
            "ClusterError",
            "ConfigurationError",
            "DataError",
            "DivergenceError",
            "Interrupted",
            "JobError",
            "LaunchError",
            "LeaseError",
            "NotFoundError",
            "OutputGoneError",
            "PeerError",
            "PhalanxError",
            "RecordError",
            "SaveError",
            "TrainingError",
            "WorkerError",
        ),
        "phalanx.launch.functions.launcher": ("launch_local",),
        "phalanx.spark": ("spark",),
        "phalanx.train.config": ("Mode", "RunConfig"),
        "phalanx.train.context": ("Context",),
        "phalanx.train.custom_loop.distributed_session": ("DistributedSession",),
        "phalanx.train.custom_loop.task_spec": ("TaskSpec", "TaskSpecDef"),
        "phalanx.train.experiment": ("Experiment",),
        "phalanx.train.hooks": ("hooks",),
        "phalanx.train.layers": ("layers",),
        "phalanx.train.keras_fit.functions": ("evaluate", "fit", "predict"),
        "phalanx.train.runner": ("run",),
        "phalanx.train.schedules": ("LinearScaling",),
        "phalanx.train.task_run": ("Result",),
        "phalanx.version": ("__version__",),
    },
)


def _join(seconds: float | None) -> None:
    from phalanx.cluster import detect  # noqa: PLC0415

    if len(detect().cluster.addresses) > 1:
        from phalanx.train.runtime.joining import join_early  # noqa: PLC0415

        join_early(seconds)


join_on_import.install(_join)
