"""End the run after a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.errors import ConfigurationError
from phalanx.train.hooks.base import Hook

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session


class StopAtTimeHook(Hook):
    """Asks the session to stop once it has trained so many seconds; all its tasks end with it.

    The time of a restart is not counted: each session has its own seconds.
    """

    def __init__(self, seconds: float) -> None:
        if seconds <= 0:
            raise ConfigurationError(f"StopAtTimeHook({seconds}): give more than 0 seconds")
        self.seconds = seconds
        self._started = 0.0

    def begin(self, session: Session) -> None:
        """The time starts."""
        self._started = session.now

    def after_step(self, session: Session) -> None:
        """Stop."""
        if session.now - self._started >= self.seconds:
            session.request_stop(f"{self.seconds:g} seconds are over, at step {session.step}")
