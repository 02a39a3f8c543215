"""Kubernetes: one Indexed Job for all tasks, and no operator."""

from phalanx.launch.kubernetes.launcher import KubernetesLauncher

__all__ = ["KubernetesLauncher"]
