"""The Marathon backend: a group with an app for each task."""

from phalanx.launch.backends.marathon.launcher import MarathonLauncher

__all__ = ["MarathonLauncher"]
