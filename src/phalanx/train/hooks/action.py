"""Anything, now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phalanx.train.hooks.base import Hook, When

if TYPE_CHECKING:
    from phalanx.train.session import Session


class ActionHook(Hook):
    """Calls a function with the session whenever it is time to.

    ActionHook(Every(steps=100), lambda session: print(session.step, session.last_loss))
    ActionHook(At(1000, 2000), halve_the_learning_rate)
    """

    def __init__(self, when: When, what: Callable[[Session], Any]) -> None:
        self.when = when
        self.what = what

    def begin(self, session: Session) -> None:
        """Count from the restored step."""
        self.when.start(session.step, session.now)

    def due(self, step: int) -> int | None:
        """When the steps say."""
        return self.when.next_step(step)

    def after_step(self, session: Session) -> None:
        """Act."""
        if self.when.is_due(session.step, session.now):
            self.what(session)
