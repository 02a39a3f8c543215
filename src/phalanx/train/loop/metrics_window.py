"""The means of the loss and the metrics over the last steps of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session


class MetricsWindow:
    """The means of the loss and the metrics over the steps since they were last read.

    Args:
        session: The session, whose steps count from now on.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._start = self._session.total_report

    def read(self) -> dict[str, float]:
        """Return the means since the last call; empty if there was no step."""
        report = self._session.total_report - self._start
        self.restart()
        return self._session.read_values(report) if report[0] > 0 else {}
