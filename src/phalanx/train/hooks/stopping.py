"""Hooks that end a run: at a step, after a time, without improvement, or when the loss is NaN."""

import logging
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from statistics import median
from typing import Literal

import numpy as np

from phalanx.errors import ConfigurationError, DivergenceError
from phalanx.train.hooks.base import Every, Hook, read_metric
from phalanx.train.loop.session import Session
from phalanx.train.model_dir.metrics_log import is_better, read_evaluations
from phalanx.train.types import KerasVariable
from phalanx.train.variables.described_variable import DescribedVariable

LOG = logging.getLogger("phalanx")

_POLL_SECONDS = 2.0
# How many losses a blow-up is compared with, and how many there must be at least.
_LOSSES = 50
_FEWEST_LOSSES = 10
_SMALL_LOSS = 1e-3


@dataclass(eq=False)
class StopAtStepHook(Hook):
    """Ends the run after the step `last_step`."""

    last_step: int

    def on_restore(self, session: Session) -> None:
        session.set_limit(self.last_step)
        if session.step >= self.last_step:
            session.request_stop(f"step {session.step} of {self.last_step} is done")


class StopAtTimeHook(Hook):
    """Ends the run, in all its tasks, after some seconds of training.

    The time before a restart does not count.

    Args:
        seconds: How long to train.
    """

    def __init__(self, seconds: float) -> None:
        if seconds <= 0:
            raise ConfigurationError(f"StopAtTimeHook({seconds}): give more than 0 seconds")
        self.seconds = seconds
        self._start_time = 0.0

    def begin(self, session: Session) -> None:
        self._start_time = session.now

    def after_step(self, session: Session) -> None:
        if session.now - self._start_time >= self.seconds:
            session.request_stop(f"{self.seconds:g} seconds have passed, at step {session.step}")


@dataclass(eq=False)
class EarlyStoppingHook(Hook):
    """Ends the run when a metric has stopped improving.

        EarlyStoppingHook("accuracy", patience=5)

    The hook sees the evaluations of the training processes and, through their file in model_dir,
    those of an evaluator. Evaluations before a restart count as well.

    Args:
        metric: The metric to watch.
        patience: How many evaluations in a row may bring no improvement.
        min_delta: The smallest change that counts as an improvement.
        best: Whether the lowest ("min") or the highest ("max") value is the best. By default, the
            name of the metric decides.
    """

    metric: str = "loss"
    _: KW_ONLY
    patience: int = 3
    min_delta: float = 0.0
    best: Literal["min", "max"] | None = None

    def __post_init__(self) -> None:
        self._poll = Every(seconds=_POLL_SECONDS)
        self._best_value: float | None = None
        self._best_step = 0
        self._evaluations_since_best = 0
        self._last_evaluated_step = -1

    def begin(self, session: Session) -> None:
        self._poll.start(session.step, session.now)
        self._read_evaluations(session)

    def after_step(self, session: Session) -> None:
        if self._poll.is_due(session.step, session.now):
            self._read_evaluations(session)

    def on_evaluate(self, session: Session, values: Mapping[str, float]) -> None:
        self._update(session, session.step, values)

    def on_rollback(self, session: Session) -> None:
        self._poll.start(session.step, session.now)

    def _read_evaluations(self, session: Session) -> None:
        for evaluation in read_evaluations(session.directory):
            self._update(session, evaluation.step, evaluation.values)

    def _update(self, session: Session, step: int, values: Mapping[str, float]) -> None:
        if step <= self._last_evaluated_step:
            return
        self._last_evaluated_step = step
        value = read_metric(self, self.metric, values)
        if self._best_value is None or is_better(
            value, self._best_value, self.metric, self.best, self.min_delta
        ):
            self._best_value, self._best_step, self._evaluations_since_best = value, step, 0
            return
        self._evaluations_since_best += 1
        if self._evaluations_since_best >= self.patience:
            session.request_stop(
                f"{self.metric} was best ({self._best_value:.6g}) at step {self._best_step}, and "
                f"{self._evaluations_since_best} evaluations since then did not improve it"
            )


class NanHook(Hook):
    """Notices when the loss, or a variable to save, is NaN or infinite.

    No checkpoint is written then. The run goes back to the last one, as often as `max_rollbacks` of
    its config allows, and fails after that.

    Args:
        fails: False only prevents checkpoints, and leaves it to others to end the run.
        max_ratio: The run has diverged as well when the loss is so many times larger than the
            median of the last losses. By default it may have any size.
    """

    def __init__(self, fails: bool = True, max_ratio: float | None = None) -> None:
        if max_ratio is not None and not max_ratio > 1:
            raise ConfigurationError(
                f"max_loss_ratio is {max_ratio:g}: a loss always varies; set it to more than 1, "
                "as in 10"
            )
        self._fails = fails
        self._max_ratio = max_ratio
        self._losses: deque[float] = deque(maxlen=_LOSSES)
        self._seen_step = 0

    def after_step(self, session: Session) -> None:
        if self._fails and not math.isfinite(session.last_loss):
            raise _diverged(f"the loss is {session.last_loss}", session)
        if self._max_ratio is not None and session.step > self._seen_step:
            self._check_size(session, self._max_ratio)

    def on_rollback(self, session: Session) -> None:
        self._seen_step = session.step

    def _check_size(self, session: Session, max_ratio: float) -> None:
        loss, self._seen_step = session.last_loss, session.step
        if len(self._losses) >= _FEWEST_LOSSES:
            usual = median(self._losses)
            # A loss near zero has no scale of its own.
            if loss > max_ratio * max(usual, _SMALL_LOSS):
                LOG.error("the loss is %.6g; the median of the last ones is %.6g", loss, usual)
                raise _diverged("the loss has blown up", session)
        self._losses.append(abs(loss))

    def may_save(self, session: Session) -> bool:
        # Asynchronous steps may have ended since the last check; and a finite loss can have a
        # gradient that is not.
        self.after_step(session)
        optimizer = session.optimizer.variables if session.optimizer is not None else []
        variables = [*session.variables.items(), *((v.path, v) for v in optimizer)]
        for name, variable in variables:
            is_float = "float" in str(getattr(variable.dtype, "name", variable.dtype))
            if not is_float or _is_finite(variable):
                continue
            error = _diverged(f"{name} has values that are NaN or infinite", session)
            if self._fails:
                raise error
            LOG.warning("no checkpoint is written: %s", error)
            return False
        return True


def _is_finite(variable: KerasVariable) -> bool:
    if isinstance(variable, DescribedVariable):
        return variable.is_finite()
    return bool(np.isfinite(np.asarray(variable.numpy())).all())


def _diverged(what: str, session: Session) -> DivergenceError:
    return DivergenceError(
        f"{what} at step {session.step}: lower the learning rate, clip the gradients "
        "(--clip-norm 1), or look for NaN and infinite values in the data"
    )
