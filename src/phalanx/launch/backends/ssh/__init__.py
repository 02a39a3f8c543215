"""The ssh backend: processes on hosts that ssh reaches."""

from phalanx.launch.backends.ssh.launcher import SshLauncher

__all__ = ["SshLauncher"]
