"""Show loss and metrics as they change."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from phalanx.train.hooks.base import Every, Hook

if TYPE_CHECKING:
    from phalanx.train.session import Session, Window

LOG = logging.getLogger("phalanx")


class LogValues(Hook):
    """Logs the means since it last did: `step 200 of 1000: loss = 0.3124, accuracy = 0.9125`."""

    def __init__(self, every: Every) -> None:
        self.every = every
        self._window: Window | None = None

    def begin(self, session: Session) -> None:
        """Count from the restored step."""
        self.every.start(session.step, session.now)
        self._window = session.open_window()

    def due(self, step: int) -> int | None:
        """When the steps say."""
        return self.every.next_step(step)

    def after_step(self, session: Session) -> None:
        """Log."""
        if self.every.is_due(session.step, session.now) and self._window:
            values = ", ".join(f"{k} = {v:.5g}" for k, v in self._window.read().items())
            of = f" of {session.limit}" if session.limit else ""
            LOG.info("step %d%s: %s", session.step, of, values)
