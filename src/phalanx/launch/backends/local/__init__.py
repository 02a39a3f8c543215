from phalanx.launch.backends.local.launcher import LocalLauncher

__all__ = ["LocalLauncher"]
