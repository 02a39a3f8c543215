from phalanx.launch.backends.marathon.launcher import MarathonLauncher

__all__ = ["MarathonLauncher"]
