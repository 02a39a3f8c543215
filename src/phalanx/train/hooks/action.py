"""Anything, now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phalanx.train.hooks.base import PeriodicHook, When

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session


class ActionHook(PeriodicHook):
    """Calls a function with the session whenever it is time to.

    ActionHook(Every(steps=100), lambda session: print(session.step, session.last_loss))
    ActionHook(At(1000, 2000), halve_the_learning_rate)
    """

    def __init__(self, when: When, what: Callable[[Session], Any]) -> None:
        super().__init__(when)
        self.what = what

    def act(self, session: Session) -> None:
        """Call it."""
        self.what(session)
