"""The hooks that every run has by default."""

import sys

from phalanx.train import hooks
from phalanx.train.config import RunConfig
from phalanx.train.hooks import Every


def default_hooks(
    config: RunConfig, speed: hooks.ExamplesPerSecondHook, evaluates: bool
) -> list[hooks.Hook]:
    """Return the hooks that a config asks for, and a progress bar on a terminal."""
    defaults: list[hooks.Hook] = []
    if config.train_steps is not None:
        defaults.append(hooks.StopAtStepHook(config.train_steps))
    defaults += [hooks.NanHook(), speed, hooks.LoggingHook(Every(steps=config.log_steps))]
    defaults.append(hooks.SummaryHook(Every(steps=config.summary_steps), speed.measure))
    seconds = None if config.save_steps else config.save_seconds
    defaults.append(hooks.CheckpointHook(Every(steps=config.save_steps, seconds=seconds)))
    if evaluates:
        every = Every(steps=config.eval_every_steps, seconds=config.eval_every_seconds)
        defaults.append(hooks.EvaluationHook(every))
    if sys.stderr.isatty():
        defaults.append(hooks.ProgressBarHook())
    return defaults
