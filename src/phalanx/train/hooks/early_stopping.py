"""Stop when it gets no better."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from phalanx.errors import ConfigurationError
from phalanx.train.hooks.base import Every, Hook
from phalanx.train.model_dir.metrics_log import is_better, read_evaluations

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session

LOG = logging.getLogger("phalanx")


class EarlyStoppingHook(Hook):
    """Stops after so many evaluations in a row that brought nothing better.

        EarlyStoppingHook("accuracy", patience=5)

    It sees the evaluations of the training processes and, through the files, those of an evaluator.
    Whether more is better follows from the name, unless `best` says it.
    """

    def __init__(
        self,
        metric: str = "loss",
        *,
        patience: int = 3,
        min_delta: float = 0.0,
        best: Literal["min", "max"] | None = None,
    ) -> None:
        self.metric = metric
        self.patience = patience
        self.min_delta = min_delta
        self.best = best
        self._look = Every(seconds=2)
        self._value: float | None = None
        self._at = 0
        self._waited = 0
        self._seen = -1

    def begin(self, session: Session) -> None:
        """Evaluations before a restart count as well."""
        self._look.start(session.step, session.now)
        self._read(session)

    def after_step(self, session: Session) -> None:
        """Look for what an evaluator has written."""
        if self._look.is_due(session.step, session.now):
            self._read(session)

    def on_evaluate(self, session: Session, values: Mapping[str, float]) -> None:
        """What the training processes found."""
        self._judge(session, session.step, values)

    def _read(self, session: Session) -> None:
        for evaluation in read_evaluations(session.directory):
            self._judge(session, evaluation.step, evaluation.values)

    def _judge(self, session: Session, step: int, values: Mapping[str, float]) -> None:
        if step <= self._seen:
            return
        self._seen = step
        if self.metric not in values:
            raise ConfigurationError(
                f"EarlyStoppingHook looks at {self.metric!r}, but the evaluation has "
                f"{', '.join(sorted(values))}"
            )
        value = values[self.metric]
        if self._value is None or is_better(
            value, self._value, self.metric, self.best, self.min_delta
        ):
            self._value, self._at, self._waited = value, step, 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            session.request_stop(
                f"{self.metric} was best ({self._value:.6g}) at step {self._at}, and "
                f"{self._waited} evaluations since brought nothing better"
            )
