"""How large the gradients are."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from phalanx.errors import ConfigurationError
from phalanx.train.hooks.base import Every, PeriodicHook, When

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session, Window

LOG = logging.getLogger("phalanx")


class GradientNormHook(PeriodicHook):
    """Logs the norm of each replica's gradients before clipping, and warns above a limit.

        GradientNormHook(Every(steps=100), limit=10.0)

    The mean since the last time is shown; summaries draw it as `gradient_norm`. A step of a
    `DistributedSession` returns it among its values.
    """

    needs_gradient_norm = True

    def __init__(self, when: When | None = None, limit: float | None = None) -> None:
        super().__init__(when or Every(steps=100))
        self.limit = limit
        self._window: Window | None = None

    def begin(self, session: Session) -> None:
        """Count from the restored step."""
        super().begin(session)
        self._window = session.open_window()

    def act(self, session: Session) -> None:
        """Log."""
        assert self._window is not None
        values = self._window.read()
        if "gradient_norm" not in values:
            raise ConfigurationError(
                "GradientNormHook finds no gradient_norm: let the step return a dict with "
                '"gradient_norm": tf.linalg.global_norm(gradients)'
            )
        norm = values["gradient_norm"]
        if self.limit is not None and norm > self.limit:
            LOG.warning(
                "gradient norm %.4g at step %d is larger than %g: clip the gradients, or lower "
                "the learning rate", norm, session.step, self.limit,
            )  # fmt: skip
        else:
            LOG.info("gradient norm %.4g at step %d", norm, session.step)
