"""How good the weights are: inline, and as a task of its own."""

from __future__ import annotations

import logging
import time

from phalanx.errors import DataError
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
        if done in (1, total) or (total and share - shown >= 0.1):
            shown = share
            LOG.info("Evaluation [%d/%s]", done, total or "?")

    report = engine.evaluate(limit, notify)
    if not report[0]:
        raise DataError("eval_data is empty: check its paths and filters")
    values = step.read_report(report)
    summaries.write_evaluation(at_step, values)
    LOG.info(
        "Evaluation of step %d: %s (%d examples in %.1f s)",
        at_step,
        ", ".join(f"{name} = {value:.6g}" for name, value in values.items()),
        report[0],
        time.monotonic() - started,
    )
    return values
