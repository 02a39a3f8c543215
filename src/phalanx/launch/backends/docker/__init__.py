"""Docker: containers on one engine."""

from phalanx.launch.backends.docker.launcher import DockerLauncher

__all__ = ["DockerLauncher"]
