"""Kubeflow Trainer: a TrainJob, and a runtime of ours for it."""

from phalanx.launch.backends.trainjob.launcher import TrainJobLauncher

__all__ = ["TrainJobLauncher"]
