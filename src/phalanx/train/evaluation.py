"""How good the weights are: inline, and as a task of its own."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from phalanx.errors import DataError, PeerError, TrainingError
from phalanx.train.checkpoint import Checkpoints, State, read_status
from phalanx.train.engines.base import Engine
from phalanx.train.step import Step
from phalanx.train.summaries import Summaries

LOG = logging.getLogger("phalanx")


def evaluate(
    step: Step, engine: Engine, limit: int | None, batches: int | None, at_step: int,
    summaries: Summaries,
) -> dict[str, float]:  # fmt: skip
    """Evaluate the engine's weights, with progress, and write the result."""
    started = time.monotonic()
    total = min(filter(None, (limit, batches)), default=None)
    shown = 0.0

    def notify(done: int) -> None:
        nonlocal shown
        share = done / total if total else 0.0
        if done == 1 or done == total or (total and share - shown >= 0.1):
            shown = share
            LOG.info("Evaluation [%d/%s]", done, total or "?")

    report = engine.evaluate(limit, notify)
    if not report[0]:
        raise DataError("eval_data is empty: check its paths and filters")
    values = step.read_report(report)
    summaries.write_scalars("eval", at_step, values)
    LOG.info(
        "Evaluation of step %d: %s (%d examples in %.1f s)",
        at_step,
        ", ".join(f"{name} = {value:.6g}" for name, value in values.items()),
        report[0],
        time.monotonic() - started,
    )
    return values


def follow_checkpoints(
    directory: str,
    checkpoints: Checkpoints,
    evaluate_at: Callable[[int], Any],
    *,
    wait_seconds: float,
    poll_seconds: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    is_asked_to_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Evaluate each new checkpoint until the chief says that there will be no more.

    The last one is never left out. Others are, if there is a newer one already. Checkpoints of an
    earlier run that are already there when it starts count as well.
    """
    evaluated: str | None = None
    heard = clock()
    word = 0.0
    started = time.time()
    while True:
        status = read_status(directory)
        # A run that goes on in this directory has not yet replaced the word of the one before.
        is_old = status is not None and status.state != State.RUNNING and status.time < started
        if status is not None and status.time != word:
            word, heard = status.time, clock()
        path = tf.train.latest_checkpoint(directory)
        if path is not None and path != evaluated:
            if _load(checkpoints, path):
                evaluate_at(int(path.rpartition("-")[2]))
                evaluated = path
                heard = clock()
            continue
        if status is not None and not is_old:
            if status.state == State.DONE:
                return
            if status.state in (State.FAILED, State.INTERRUPTED):
                raise TrainingError(f"the chief ended: {status.reason}")
        if is_asked_to_stop():
            return
        if clock() - heard > wait_seconds:
            raise PeerError(
                f"no new checkpoint in {directory} for {wait_seconds:.0f} s, and no word of the "
                "chief: is it running, and does it save there?"
            )
        sleep(poll_seconds)


def _load(checkpoints: Checkpoints, path: str) -> bool:
    """A checkpoint may be deleted just while it is read: then there is a newer one."""
    try:
        checkpoints.load_model(path)
    except tf.errors.NotFoundError:
        return False
    return True
