"""Processes on this machine: plan.py says what is started."""

from phalanx.launch.backends.local.launcher import LocalLauncher

__all__ = ["LocalLauncher"]
