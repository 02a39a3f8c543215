"""Show loss and metrics as they change."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from phalanx.train.hooks.base import PeriodicHook, When

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session, Window

LOG = logging.getLogger("phalanx")


class LoggingHook(PeriodicHook):
    """Logs the means since it last did: `step 200 of 1000: loss = 0.3124, accuracy = 0.9125`."""

    def __init__(self, when: When) -> None:
        super().__init__(when)
        self._window: Window | None = None

    def begin(self, session: Session) -> None:
        """Count from the restored step."""
        super().begin(session)
        self._window = session.open_window()

    def act(self, session: Session) -> None:
        """Log."""
        if self._window:
            values = ", ".join(f"{k} = {v:.5g}" for k, v in self._window.read().items())
            of = f" of {session.limit}" if session.limit else ""
            LOG.info("step %d%s: %s", session.step, of, values)
