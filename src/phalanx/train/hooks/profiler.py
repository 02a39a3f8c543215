"""Where the time goes, for TensorBoard's Profile tab."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import tensorflow as tf

from phalanx.train.hooks.base import At, PeriodicHook, When

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session

LOG = logging.getLogger("phalanx")


class ProfilerHook(PeriodicHook):
    """Records some steps of the chief, by default 5 from step 10 on, into the run's directory.

        ProfilerHook()
        ProfilerHook(Every(steps=10_000), steps=10)

    To look at them: `pip install tensorboard-plugin-profile`, then `phalanx board`.
    """

    def __init__(self, when: When | None = None, steps: int = 5) -> None:
        super().__init__(when or At(10))
        self.steps = steps
        self._until: int | None = None

    def due(self, step: int) -> int | None:
        """Where a recording begins or ends."""
        return self.when.next_step(step) if self._until is None else max(self._until, step + 1)

    def after_step(self, session: Session) -> None:
        """Begin or end a recording."""
        is_due = self.when.is_due(session.step, session.now)
        if self._until is not None and session.step >= self._until:
            self._stop()
            LOG.info("profiled up to step %d: phalanx board %s", session.step, session.directory)
        elif is_due and self._until is None:
            tf.profiler.experimental.start(session.directory)
            self._until = session.step + self.steps

    def end(self, session: Session) -> None:
        """Keep what was recorded so far."""
        self._stop()

    def on_error(self, session: Session, error: BaseException) -> None:
        """Keep what was recorded so far."""
        self._stop()

    def _stop(self) -> None:
        if self._until is not None:
            self._until = None
            tf.profiler.experimental.stop()
