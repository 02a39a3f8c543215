"""Evaluate as the run goes, and at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.train.hooks.base import Every, Hook

if TYPE_CHECKING:
    from phalanx.train.session import Session


class EvaluationHook(Hook):
    """Evaluates in the training processes, for runs without an evaluator task."""

    def __init__(self, every: Every, at_end: bool = True) -> None:
        self.every = every
        self.at_end = at_end

    def begin(self, session: Session) -> None:
        """Count from the restored step."""
        self.every.start(session.step, session.now)

    def due(self, step: int) -> int | None:
        """When the steps say."""
        return self.every.next_step(step)

    def after_step(self, session: Session) -> None:
        """Evaluate."""
        if self.every.is_due(session.step, session.now):
            session.evaluate()

    def end(self, session: Session) -> None:
        """Once more, unless that was just done or the run was interrupted."""
        is_new = session.evaluated_step != session.step
        if self.at_end and is_new and not session.is_interrupted:
            session.evaluate()
