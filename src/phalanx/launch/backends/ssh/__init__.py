from phalanx.launch.backends.ssh.launcher import SshLauncher

__all__ = ["SshLauncher"]
