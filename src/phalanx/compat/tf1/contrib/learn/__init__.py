"""tf.contrib.learn: experiments, and how a task of a cluster runs one."""

from phalanx.compat.tf1.contrib.learn import learn_runner, utils
from phalanx.compat.tf1.contrib.learn.experiment import Experiment
from phalanx.compat.tf1.contrib.learn.export_strategy import ExportStrategy
from phalanx.compat.tf1.contrib.learn.models import (
    Estimator,
    InputFnOps,
    MetricSpec,
    ModeKeys,
    ModelFnOps,
)
from phalanx.compat.tf1.contrib.learn.run_config import RunConfig
from phalanx.compat.tf1.estimator.inputs import numpy_input_fn, pandas_input_fn
from phalanx.compat.tf1.estimator.run_config import TaskType

__all__ = [
    "Estimator",
    "Experiment",
    "ExportStrategy",
    "InputFnOps",
    "MetricSpec",
    "ModeKeys",
    "ModelFnOps",
    "RunConfig",
    "TaskType",
    "learn_runner",
    "numpy_input_fn",
    "pandas_input_fn",
    "utils",
]
