"""Hosts that are reached with ssh, for those who have no cluster manager."""

from phalanx.launch.backends.ssh.launcher import SshLauncher

__all__ = ["SshLauncher"]
