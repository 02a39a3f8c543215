"""Save as the run goes, and at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.train.hooks.base import PeriodicHook

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session


class CheckpointHook(PeriodicHook):
    """Saves each so many steps or seconds, and always at the end."""

    def begin(self, session: Session) -> None:
        """Save the beginning too, so that an evaluator has something to compare with."""
        super().begin(session)
        if session.step == 0:
            session.save()

    def act(self, session: Session) -> None:
        """Save."""
        session.save()

    def end(self, session: Session) -> None:
        """The final checkpoint."""
        session.save()
