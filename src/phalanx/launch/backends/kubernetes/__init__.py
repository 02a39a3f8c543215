from phalanx.launch.backends.kubernetes.launcher import KubernetesLauncher

__all__ = ["KubernetesLauncher"]
