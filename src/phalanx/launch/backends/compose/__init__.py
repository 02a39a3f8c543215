"""Docker Compose: a file that people keep, and containers on one engine."""

from phalanx.launch.backends.compose.launcher import ComposeLauncher

__all__ = ["ComposeLauncher"]
