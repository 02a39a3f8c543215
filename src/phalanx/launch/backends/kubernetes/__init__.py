"""Kubernetes: an Indexed Job for each role, and no operator."""

from phalanx.launch.backends.kubernetes.launcher import KubernetesLauncher

__all__ = ["KubernetesLauncher"]
