"""Kubernetes: an Indexed Job for each role, and no operator."""

from phalanx.launch.kubernetes.launcher import KubernetesLauncher

__all__ = ["KubernetesLauncher"]
