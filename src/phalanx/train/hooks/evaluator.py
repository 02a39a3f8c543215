"""Evaluate as the run goes, and at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.train.hooks.base import Every, Hook

if TYPE_CHECKING:
    from phalanx.train.session import Session


class InlineEvaluator(Hook):
    """Evaluates in the training processes, for runs without an evaluator task."""

    def __init__(self, every: Every, at_end: bool = True) -> None:
        self.every = every
        self.at_end = at_end
        self._evaluated: int | None = None

    def begin(self, session: Session) -> None:
        """Count from the restored step."""
        self.every.start(session.step, session.now)

    def due(self, step: int) -> int | None:
        """When the steps say."""
        return self.every.next_step(step)

    def after_step(self, session: Session) -> None:
        """Evaluate."""
        if self.every.is_due(session.step, session.now):
            self._evaluate(session)

    def end(self, session: Session) -> None:
        """Once more, unless that was just done or the run was interrupted."""
        if self.at_end and self._evaluated != session.step and not session.is_interrupted:
            self._evaluate(session)

    def _evaluate(self, session: Session) -> None:
        session.evaluate()
        self._evaluated = session.step
