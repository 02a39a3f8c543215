"""Save as the run goes, and at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.train.hooks.base import Every, Hook

if TYPE_CHECKING:
    from phalanx.train.session import Session


class CheckpointSaver(Hook):
    """Saves each so many steps or seconds, and always at the end."""

    def __init__(self, every: Every) -> None:
        self.every = every

    def begin(self, session: Session) -> None:
        """Save the beginning too, so that an evaluator has something to compare with."""
        self.every.start(session.step, session.now)
        if session.step == 0:
            session.save()

    def due(self, step: int) -> int | None:
        """When the steps say."""
        return self.every.next_step(step)

    def after_step(self, session: Session) -> None:
        """Save."""
        if self.every.is_due(session.step, session.now):
            session.save()

    def end(self, session: Session) -> None:
        """The final checkpoint."""
        session.save()
