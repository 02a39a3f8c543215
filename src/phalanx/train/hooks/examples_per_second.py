"""How fast it goes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from phalanx.train.hooks.base import PeriodicHook, When

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session

LOG = logging.getLogger("phalanx")


class ExamplesPerSecondHook(PeriodicHook):
    """Logs the average and the current speed: `Average examples/sec: 1116.92 (1116.92), step = 10`.

    The first group of steps is left out: it includes the tracing.
    """

    def __init__(self, when: When) -> None:
        super().__init__(when)
        self.average = 0.0
        self.current = 0.0
        self._start: tuple[float, float] | None = None
        self._last = (0.0, 0.0)

    def after_step(self, session: Session) -> None:
        """Measure, and log if it is time to."""
        if self._start is None:
            self._start = self._last = (session.now, session.examples)
            return
        if not self.when.is_due(session.step, session.now):
            return
        self.measure(session)
        if self.average:
            LOG.info(
                "Average examples/sec: %.2f (%.2f), step = %d",
                self.average,
                self.current,
                session.step,
            )

    def measure(self, session: Session) -> float:
        """The current speed; brings both figures up to date."""
        if self._start is None or session.now <= self._last[0]:
            return self.current
        here = (session.now, float(session.examples))
        self.average = (here[1] - self._start[1]) / (here[0] - self._start[0])
        self.current = (here[1] - self._last[1]) / (here[0] - self._last[0])
        self._last = here
        return self.current

    def end(self, session: Session) -> None:
        """The last figures."""
        self.measure(session)
