"""The local backend: processes on this machine."""

from phalanx.launch.backends.local.launcher import LocalLauncher

__all__ = ["LocalLauncher"]
