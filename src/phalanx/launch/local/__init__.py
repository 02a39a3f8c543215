"""Processes on this machine: plan.py says what is started, supervisor.py runs it to its end."""

from phalanx.launch.local.launcher import LocalHandle, LocalLauncher

__all__ = ["LocalHandle", "LocalLauncher"]
