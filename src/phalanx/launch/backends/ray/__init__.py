"""The Ray backend: actors in a placement group."""

from phalanx.launch.backends.ray.launcher import RayLauncher

__all__ = ["RayLauncher"]
