"""The hooks that every run has by default."""

from __future__ import annotations

import sys

from phalanx.train.config import RunConfig
from phalanx.train.hooks import (
    CheckpointHook,
    EvaluationHook,
    Every,
    ExamplesPerSecondHook,
    Hook,
    LoggingHook,
    NanHook,
    ProgressBarHook,
    StopAtStepHook,
    SummaryHook,
)


def default_hooks(config: RunConfig, speed: ExamplesPerSecondHook, evaluates: bool) -> list[Hook]:
    """Return the hooks that a config asks for, and a progress bar on a terminal."""
    hooks: list[Hook] = []
    if config.train_steps is not None:
        hooks.append(StopAtStepHook(config.train_steps))
    hooks += [NanHook(), speed, LoggingHook(Every(steps=config.log_steps))]
    hooks.append(SummaryHook(Every(steps=config.summary_steps), speed.measure))
    seconds = None if config.save_steps else config.save_seconds
    hooks.append(CheckpointHook(Every(steps=config.save_steps, seconds=seconds)))
    if evaluates:
        every = Every(steps=config.eval_every_steps, seconds=config.eval_every_seconds)
        hooks.append(EvaluationHook(every))
    if sys.stderr.isatty():
        hooks.append(ProgressBarHook())
    return hooks
