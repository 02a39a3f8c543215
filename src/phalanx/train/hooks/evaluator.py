"""Evaluate as the run goes, and at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.train.hooks.base import PeriodicHook

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session


class EvaluationHook(PeriodicHook):
    """Evaluates in the training processes, for runs without an evaluator task."""

    def act(self, session: Session) -> None:
        """Evaluate."""
        session.evaluate()

    def end(self, session: Session) -> None:
        """Once more, unless that was just done or the run was interrupted."""
        is_new = session.evaluated_step != session.step
        if is_new and not session.is_interrupted:
            session.evaluate()
