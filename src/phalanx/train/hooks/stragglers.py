"""Names trainers that are much slower than the others."""

import logging
from collections.abc import Mapping
from statistics import median

from phalanx.train.hooks.base import Hook
from phalanx.train.loop.session import Session

LOG = logging.getLogger("phalanx")

# Fewer steps say nothing about the speed of a trainer.
_FEWEST_STEPS = 5


class StragglerHook(Hook):
    """Logs which trainers make far fewer steps than the median of all, and when they catch up.

    It compares trainers that work independently: those of asynchronous training. The live table of
    `phalanx run` and the metrics show them as well.

    Args:
        factor: How many times slower than the median a straggler is.
        seconds: How long to count steps before they are compared.
    """

    def __init__(self, factor: float = 2.0, seconds: float = 30.0) -> None:
        self._factor = factor
        self._seconds = seconds
        self._since = 0.0
        self._before: Mapping[str, int] = {}

    def begin(self, session: Session) -> None:
        self._since, self._before = session.now, dict(session.trainer_steps)

    def after_step(self, session: Session) -> None:
        passed = session.now - self._since
        if passed < self._seconds:
            return
        steps = dict(session.trainer_steps)
        made = {task: count - self._before.get(task, 0) for task, count in steps.items()}
        usual = median(made.values()) if made else 0
        if usual < _FEWEST_STEPS and made:
            return
        self._since, self._before = session.now, steps
        slow = frozenset(task for task, count in made.items() if count * self._factor < usual)
        for task in sorted(slow - session.stragglers):
            LOG.warning(
                "%s is a straggler: it made %d steps in %.0f s, and half of the trainers made at "
                "least %.0f",
                task, made[task], passed, usual,
            )  # fmt: skip
        for task in sorted(session.stragglers - slow):
            LOG.info("%s is no straggler any more", task)
        session.stragglers = slow
