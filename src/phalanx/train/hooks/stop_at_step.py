"""End the run at a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.train.hooks.base import Hook

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session


class StopAtStepHook(Hook):
    """Asks the session to stop once `last_step` is done."""

    def __init__(self, last_step: int) -> None:
        self.last_step = last_step

    def begin(self, session: Session) -> None:
        """A restored run may be there already."""
        session.set_limit(self.last_step)
        if session.step >= self.last_step:
            session.request_stop(f"step {session.step} of {self.last_step} is done")
