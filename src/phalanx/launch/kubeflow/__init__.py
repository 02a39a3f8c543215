"""Kubeflow: a TFJob for its training operator."""

from phalanx.launch.kubeflow.launcher import KubeflowLauncher

__all__ = ["KubeflowLauncher"]
