"""The hooks that every run has by default."""

import os
import sys
from collections.abc import Sequence

from phalanx.train import hooks
from phalanx.train.config import RunConfig
from phalanx.train.hooks import Every
from phalanx.train.hooks.entry_points import load_hooks
from phalanx.train.hooks.progress import make_progress_hooks
from phalanx.train.hooks.task_file import TaskFileHook
from phalanx.train.model_dir.task_files import current_task_file
from phalanx.train.runtime.metrics_address import find_metrics_address
from phalanx.train.runtime.topology import Strategy, Topology


def default_hooks(
    config: RunConfig,
    speed: hooks.ExamplesPerSecondHook,
    evaluates: bool,
    callbacks: Sequence[hooks.CallbackHook] = (),
    topology: Topology | None = None,
    shares: int = 0,
) -> list[hooks.Hook]:
    """Return the hooks that a config asks for, and those that show its progress.

    Callbacks that do the same take the place of a hook.
    """
    defaults: list[hooks.Hook] = []
    if topology is not None:
        if topology.strategy is Strategy.ASYNC_PS:
            defaults.append(hooks.StragglerHook())
        # These come first: what other hooks do after a step is not time of the step.
        defaults += _make_metrics_hooks(config, topology)
        if (file := current_task_file()) is not None:
            defaults.append(TaskFileHook(file, topology.trainers))
    if config.train_steps is not None:
        defaults.append(hooks.StopAtStepHook(config.train_steps))
    keeps = config.model_dir is not None
    if keeps or config.max_loss_ratio is not None:
        fails = not any(hook.terminates_on_nan for hook in callbacks)
        defaults.append(hooks.NanHook(fails, config.max_loss_ratio))
    defaults.append(speed)
    # Keras' bar or its line per epoch says the same; lines between its updates would break a bar.
    shows_epochs = any(hook.shows_epochs for hook in callbacks)
    speed.logs = not shows_epochs
    if not shows_epochs:
        defaults.append(hooks.LoggingHook(Every(steps=config.log_steps)))
    if keeps:
        steps = None if config.summary_seconds else config.summary_steps
        every = Every(steps=steps, seconds=config.summary_seconds)
        defaults.append(hooks.SummaryHook(every, speed.measure))
        seconds = None if config.save_steps else config.save_seconds
        defaults.append(hooks.CheckpointHook(Every(steps=config.save_steps, seconds=seconds)))
    every = Every(steps=config.eval_every_steps, seconds=config.eval_every_seconds)
    # Callbacks evaluate at the end of each epoch; what is kept is evaluated as it is kept, too.
    if evaluates and (keeps or not callbacks or every != Every()):
        defaults.append(hooks.EvaluationHook(every))
    if sys.stderr.isatty() and not shows_epochs:
        defaults.append(hooks.ProgressBarHook())
    defaults += load_hooks(config)
    if topology is not None:
        defaults += make_progress_hooks(topology, shares)
    return defaults


def _make_metrics_hooks(config: RunConfig, topology: Topology) -> list[hooks.Hook]:
    address = find_metrics_address(config, os.environ)
    if address is None:
        return []
    # The library is an extra.
    from phalanx.train.hooks.metrics import MetricsHook  # noqa: PLC0415

    return [MetricsHook(*address, topology)]
