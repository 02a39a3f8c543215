from phalanx.launch.backends.ray.launcher import RayLauncher

__all__ = ["RayLauncher"]
