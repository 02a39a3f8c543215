"""Kubeflow: a TFJob for its training operator."""

from phalanx.launch.backends.kubeflow.launcher import KubeflowLauncher

__all__ = ["KubeflowLauncher"]
