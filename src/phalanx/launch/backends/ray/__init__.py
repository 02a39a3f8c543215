"""Ray: an actor for each task, in one placement group."""

from phalanx.launch.backends.ray.launcher import RayLauncher

__all__ = ["RayLauncher"]
