"""`run`: trains an experiment on the cluster that this process is part of."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeAlias

import keras

from phalanx.cluster import Role, detect
from phalanx.train.config import RunConfig
from phalanx.train.console import explain_errors, show_log
from phalanx.train.experiment import Experiment, experiment_name
from phalanx.train.hooks import CallbackHook, Hook
from phalanx.train.model_dir.checkpoint import check_directory
from phalanx.train.model_dir.lease import hold_lease
from phalanx.train.model_dir.remote import needs_local_copy, open_local_copy
from phalanx.train.runtime.topology import Topology, resolve_topology
from phalanx.train.task_run import Result, TaskRun
from phalanx.train.types import Callback

LOG = logging.getLogger("phalanx")

RunHandler: TypeAlias = Callable[[Experiment, RunConfig | None], Result]

_run_handler: RunHandler | None = None


def run(
    experiment: Experiment,
    config: RunConfig | None = None,
    *,
    hooks: Sequence[Hook] = (),
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Train an experiment: do what the role of this process in its cluster requires.

        phalanx.run(Digits(), phalanx.RunConfig(model_dir="runs/digits", train_steps=1000))

    Args:
        experiment: What to train.
        config: How to train. By default, the flags of the command line.
        hooks: Hooks to call beside the default ones.
        callbacks: Keras callbacks to call on the chief, as `fit` does. With evaluation data, each
            epoch then ends with an evaluation. `hooks.CallbackHook` has further settings.

    Returns:
        On the chief (also in a run of one process), the result of the training; on an evaluator,
        that of its last evaluation. All other tasks return an empty result when the chief is done.

    Raises:
        PhalanxError: The settings are wrong, the training failed, or another task failed. The tasks
            beside the chief raise the reason that the chief gives.
    """
    if _run_handler is not None:
        return _run_handler(experiment, config)
    explain_errors()
    show_log()
    if callbacks:
        hooks = [CallbackHook(callbacks), *hooks]
    tf_config = detect()
    config = config or RunConfig.parse()
    if config.model_dir is None:
        config = config.replace(model_dir=tf_config.model_dir)
    if config.train_steps is None and config.epochs is None:
        config = config.replace(epochs=1)
    topology = resolve_topology(tf_config, config)
    if topology.is_chief and tf_config.model_dir not in (None, config.model_dir):
        LOG.warning(
            "model_dir is %s, as the program sets it; %s in TF_CONFIG is ignored: remove model_dir "
            "from the program to use it",
            config.model_dir, tf_config.model_dir,
        )  # fmt: skip
    is_evaluator = topology.task.role is Role.EVALUATOR
    if not needs_local_copy(config.model_dir) or not (is_evaluator or topology.is_chief):
        return _run_task(experiment, config, topology, hooks)
    remote = str(config.model_dir)
    addresses = topology.cluster.addresses.values()
    with (
        hold_lease(None if is_evaluator else remote, addresses),
        open_local_copy(remote, is_evaluator) as local,
    ):
        result = _run_task(experiment, config.replace(model_dir=local), topology, hooks)
    model_dir = result.model_dir.replace(local, remote.rstrip("/"), 1)
    checkpoint = result.checkpoint.replace(local, remote.rstrip("/"), 1)
    return replace(result, model_dir=model_dir, checkpoint=checkpoint)


@contextmanager
def handle_runs(handler: RunHandler) -> Iterator[None]:
    """Let `run` call a handler instead of training, in all threads of this process."""
    global _run_handler  # noqa: PLW0603
    before, _run_handler = _run_handler, handler
    try:
        yield
    finally:
        _run_handler = before


def _run_task(
    experiment: Experiment, config: RunConfig, topology: Topology, hooks: Sequence[Hook]
) -> Result:
    if config.seed is not None:
        keras.utils.set_random_seed(config.seed)
    if config.mixed_precision is not None:
        keras.mixed_precision.set_global_policy(f"mixed_{config.mixed_precision}")
    is_evaluator = topology.task.role is Role.EVALUATOR
    if is_evaluator or topology.is_chief:
        config = config.replace(model_dir=check_directory(config.model_dir))
    if topology.is_chief and not is_evaluator:
        LOG.info(
            "%s, %s, as %s of %d: %s",
            experiment_name(experiment), topology.strategy, topology.task,
            max(1, len(topology.cluster.addresses)), config.describe(),
        )  # fmt: skip
    return TaskRun(experiment, config, topology, hooks).run_role()
