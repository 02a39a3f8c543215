"""Stop when the loss is no number."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from phalanx.errors import TrainingError
from phalanx.train.hooks.base import Hook

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session


class NanHook(Hook):
    """Fails the run as soon as the loss is NaN or infinite; nothing is saved."""

    def after_step(self, session: Session) -> None:
        """Look at the sum of the last losses: it is no number if one of them is none."""
        if math.isfinite(session.last_loss_sum):
            return
        raise TrainingError(
            f"the loss is {session.last_loss_sum} at step {session.step}: lower the learning rate, "
            "clip the gradients (--clip-norm 1), or look for bad numbers in the data"
        )
