"""Marathon: a group with an app for each task."""

from phalanx.launch.marathon.launcher import MarathonLauncher

__all__ = ["MarathonLauncher"]
