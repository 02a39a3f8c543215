"""Docker Swarm: a stack of services on several engines."""

from phalanx.launch.backends.swarm.launcher import SwarmLauncher

__all__ = ["SwarmLauncher"]
