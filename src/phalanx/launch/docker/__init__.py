"""Docker: containers on one engine."""

from phalanx.launch.docker.launcher import DockerLauncher

__all__ = ["DockerLauncher"]
