"""Docker Swarm: a stack of services on several engines."""

from phalanx.launch.swarm.launcher import SwarmLauncher

__all__ = ["SwarmLauncher"]
