"""`run`: do whatever this process's role in the cluster asks."""

from __future__ import annotations

import gc
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras

from phalanx.cluster import Role, detect
from phalanx.errors import ConfigurationError, Interrupted
from phalanx.train.config import RunConfig
from phalanx.train.console import explain_errors, show_log
from phalanx.train.context import Context
from phalanx.train.engines.all_reduce import AllReduceEngine
from phalanx.train.engines.base import EvaluationEngine, TrainingEngine
from phalanx.train.engines.ps_async import AsyncPSEngine
from phalanx.train.engines.ps_sync import SyncPSEngine
from phalanx.train.experiment import Experiment, experiment_name, is_written
from phalanx.train.hooks import Every, ExamplesPerSecondHook, Hook
from phalanx.train.loop import evaluation
from phalanx.train.loop.checkpoint_evaluator import Follow, evaluator, follow, process_start
from phalanx.train.loop.default_hooks import default_hooks
from phalanx.train.loop.session import Session
from phalanx.train.model_dir.checkpoint import Checkpoints, check_directory
from phalanx.train.model_dir.remote import needs_local_copy, open_local_copy, with_remote_paths
from phalanx.train.model_dir.summaries import Summaries
from phalanx.train.runtime.control_channel import ControlChannel
from phalanx.train.runtime.dataset_graph import can_be_sent
from phalanx.train.runtime.failures import propagate_failures
from phalanx.train.runtime.peers import accept_connections, run_server, wait_for_peers
from phalanx.train.runtime.ps_cluster import ParameterServerCluster
from phalanx.train.runtime.signals import StopRequest, catch_sigterm
from phalanx.train.runtime.task_data import TaskData, make_eval_data, make_train_data
from phalanx.train.runtime.topology import (
    Strategy,
    Topology,
    find_devices,
    join_all_reduce_strategy,
    make_local_strategy,
    resolve_topology,
)
from phalanx.train.runtime.worker_data import serve_worker_data
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.host_variables import HostVariables
from phalanx.train.variables.sparse_tables import is_table

LOG = logging.getLogger("phalanx")


@dataclass(frozen=True)
class Result:
    """What came of a run. Only the chief and the evaluator have figures."""

    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    examples_per_second: float = 0.0
    model_dir: str = ""
    checkpoint: str = ""
    model: Any = None


def run(
    experiment: Experiment, config: RunConfig | None = None, *, hooks: Sequence[Hook] = ()
) -> Result:
    """Train an experiment, as this process's place in its cluster asks.

        phalanx.run(Digits(), phalanx.RunConfig(model_dir="runs/digits", train_steps=1000))

    Without a config, the flags of the command line are read. The chief (or the one process there
    is) gets back the result when training is done; every other task returns when the chief is done,
    or raises with the chief's reason.
    """
    explain_errors()
    show_log()
    tf_config = detect()
    config = config or RunConfig.parse()
    if config.model_dir is None:
        config = config.replace(model_dir=tf_config.model_dir)
    if config.train_steps is None and config.epochs is None:
        config = config.replace(epochs=1)
    topology = resolve_topology(tf_config, config)
    if topology.is_chief and tf_config.model_dir not in (None, config.model_dir):
        LOG.warning(
            "model_dir is %s, as the program sets it; %s in TF_CONFIG does not count: leave "
            "it open in the program to use that",
            config.model_dir, tf_config.model_dir,
        )  # fmt: skip
    evaluates = topology.task.role is Role.EVALUATOR
    if not needs_local_copy(config.model_dir) or not (evaluates or topology.is_chief):
        return _run_as(experiment, config, topology, hooks)
    remote = str(config.model_dir)
    with open_local_copy(remote, evaluates) as local:
        here = config.replace(model_dir=local)
        result = _run_as(experiment, here, topology, hooks)
    return with_remote_paths(result, remote, local)


def _run_as(
    experiment: Experiment,
    config: RunConfig,
    topology: Topology,
    hooks: Sequence[Hook],
) -> Result:
    _prepare(config)
    if topology.task.role is Role.EVALUATOR:
        return _follow_as_evaluator(experiment, config)
    if topology.is_chief:
        config = config.replace(model_dir=check_directory(config.model_dir))
        LOG.info(
            "%s, %s, as %s of %d; settings:\n%s",
            experiment_name(experiment), topology.strategy, topology.task,
            max(1, len(topology.cluster.addresses)), config.describe(),
        )  # fmt: skip
    if topology.strategy.has_ps:
        if not topology.is_chief:
            is_trainer = topology.task in topology.trainers
            make = partial(_make_own_data, experiment, config, topology)
            run_server(topology, config, make if is_trainer else None)
            return Result()
        return _lead_on_ps(experiment, config, topology, hooks)
    return _run_in_step(experiment, config, topology, hooks)


def _run_in_step(
    experiment: Experiment,
    config: RunConfig,
    topology: Topology,
    hooks: Sequence[Hook],
) -> Result:
    is_many = topology.strategy is Strategy.ALL_REDUCE
    channel = ControlChannel()
    with propagate_failures(topology, channel):
        if is_many:
            channel.open()
            # TensorFlow waits for all peers without limit, and lets no other thread run meanwhile.
            with accept_connections(topology.cluster.addresses[topology.task]):
                wait_for_peers(topology, config.wait_seconds)
            strategy = join_all_reduce_strategy(topology)
            devices = list(strategy.extended.worker_devices)
        else:
            devices = find_devices(config)
            strategy = make_local_strategy(devices)
        # TensorFlow has put its own handler in place by now.
        with catch_sigterm() as stop:
            context = topology.context_for(config, topology.task, len(devices))
            step, host_variables, feed = _build(experiment, context, hooks)
            engine = AllReduceEngine(
                step,
                host_variables,
                strategy,
                context,
                feed,
                devices=devices,
                on_host=config.variables == "cpu",
                clipping=make_clipping(step, config),
                is_chief=topology.is_chief,
                accumulate=config.accumulate,
                xla=config.xla,
                steps_per_call=config.steps_per_call,
                eval_steps=config.eval_steps,
                is_asked_to_stop=stop,
            )
            if topology.is_chief:
                return _lead(config, topology, step, host_variables, engine, feed, hooks, stop)
            try:
                engine.begin(0, 0)
                engine.follow()
            finally:
                engine.close_data()
            if engine.is_interrupted():
                raise Interrupted(
                    "the run was asked to end (SIGTERM); the chief has saved: run it again"
                )
            return Result()


def _lead_on_ps(
    experiment: Experiment,
    config: RunConfig,
    topology: Topology,
    hooks: Sequence[Hook],
) -> Result:
    channel = ControlChannel()
    channel.open()
    with propagate_failures(topology, channel):
        wait_for_peers(topology, config.wait_seconds)
        ps_cluster = ParameterServerCluster(topology, config, experiment, channel)
        ps_cluster.connect()
        with catch_sigterm() as stop:
            result = _build_and_lead_on_ps(experiment, config, ps_cluster, hooks, stop)
        # What TensorFlow keeps on the servers must go while they are still there.
        gc.collect()
        return result


def _make_own_data(experiment: Experiment, config: RunConfig, topology: Topology) -> None:
    """Serve this worker's share to itself, if the chief cannot send it."""
    make = partial(make_train_data, experiment, topology.context_for(config, topology.task))
    data = make()
    if not can_be_sent(data, make):
        serve_worker_data(data)


def _build_and_lead_on_ps(
    experiment: Experiment,
    config: RunConfig,
    ps_cluster: ParameterServerCluster,
    hooks: Sequence[Hook],
    stop: StopRequest,
) -> Result:
    step, host_variables, feed = _build(experiment, ps_cluster.contexts[0], hooks)
    check_fits_ps(config, step, host_variables)
    element_spec, clipping = feed.train.element_spec, make_clipping(step, config)
    if not can_be_sent(feed.train, partial(make_train_data, experiment, ps_cluster.contexts[0])):
        ps_cluster.worker_data = element_spec
    is_async = ps_cluster.topology.strategy is Strategy.ASYNC_PS
    kind = AsyncPSEngine if is_async else SyncPSEngine
    engine = kind(ps_cluster, step, host_variables, element_spec, clipping)
    return _lead(config, ps_cluster.topology, step, host_variables, engine, feed, hooks, stop)


def check_fits_ps(config: RunConfig, step: StepFunction, host_variables: HostVariables) -> None:
    """What cannot be trained on parameter servers is refused."""
    if isinstance(step.optimizer, keras.optimizers.LossScaleOptimizer):
        raise ConfigurationError(
            "mixed_precision is float16, whose loss scale parameter servers cannot agree on: use "
            "bfloat16, which needs none, or train in step without parameter servers"
        )
    if config.xla and any(is_table(variable) for variable in host_variables.trainable):
        raise ConfigurationError(
            "xla is set, but the model looks up rows on parameter servers, which XLA cannot: leave "
            "--xla out"
        )


def _lead(
    config: RunConfig,
    topology: Topology,
    step: StepFunction,
    host_variables: HostVariables,
    engine: TrainingEngine,
    feed: TaskData,
    hooks: Sequence[Hook],
    stop: StopRequest,
) -> Result:
    directory = str(config.model_dir)
    checkpoints = _open_checkpoints(config, step, host_variables)
    summaries = Summaries(directory)
    speed = ExamplesPerSecondHook(Every(steps=config.log_steps))
    data = feed.make_evaluation()
    evaluate = None
    if data is not None:
        count = int(data.cardinality())
        evaluate = partial(
            _evaluate, step, engine, config.eval_steps, count if count > 0 else None, summaries
        )
    session = Session(
        step,
        engine,
        checkpoints,
        summaries,
        [
            *default_hooks(config, speed, evaluate is not None and not topology.has_evaluator),
            *hooks,
        ],
        epochs=config.epochs,
        evaluate=evaluate,
        resume_data=config.resume_data,
        is_asked_to_stop=stop,
    )
    try:
        with session:
            while not session.should_stop():
                session.advance()
    finally:
        summaries.close()
    LOG.info("finished: %s", session.stop_reason)
    return Result(
        step=session.step,
        metrics=dict(session.evaluation),
        examples_per_second=speed.average,
        model_dir=directory,
        checkpoint=str(checkpoints.latest),
        model=step.model,
    )


def _evaluate(
    step: StepFunction,
    engine: EvaluationEngine,
    limit: int | None,
    count: int | None,
    summaries: Summaries,
    at: int,
) -> dict[str, float]:
    return evaluation.evaluate(step, engine, limit, count, at, summaries)


def _follow_as_evaluator(experiment: Experiment, config: RunConfig) -> Result:
    directory = check_directory(config.model_dir)
    how = Follow(wait_seconds=config.wait_seconds, since=process_start())
    with evaluator(experiment, config) as (evaluate, model), catch_sigterm() as stop:
        step, values = follow(directory, evaluate, how, stop)
    return Result(step, values, model_dir=directory, model=model)


def _build(
    experiment: Experiment, context: Context, hooks: Sequence[Hook]
) -> tuple[StepFunction, HostVariables, TaskData]:
    step = StepFunction(experiment, context)
    step.measures_gradients = any(hook.needs_gradient_norm for hook in hooks)
    data = make_train_data(experiment, context)
    make_evaluation = partial(make_eval_data, experiment, context)
    is_own = is_written(experiment, "train_step") or is_written(experiment, "eval_step")
    tested = make_evaluation() if is_own else None
    step.build(data.element_spec, None if tested is None else tested.element_spec)
    host_variables = step.make_host_variables()
    return step, host_variables, TaskData(data, make_evaluation)


def _open_checkpoints(
    config: RunConfig, step: StepFunction, host_variables: HostVariables
) -> Checkpoints:
    return Checkpoints(
        str(config.model_dir),
        step,
        host_variables,
        keep_max=config.keep_max,
        keep_every_hours=config.keep_every_hours,
        global_batch_size=config.global_batch_size,
    )


def make_clipping(step: StepFunction, config: RunConfig) -> Clipping:
    """Return the limits that the optimizer and the config put on gradients."""
    optimizer = step.optimizer
    return Clipping(
        value=optimizer.clipvalue,
        norm=optimizer.clipnorm,
        global_norm=config.clip_norm or optimizer.global_clipnorm,
    )


def _prepare(config: RunConfig) -> None:
    if config.seed is not None:
        keras.utils.set_random_seed(config.seed)
    if config.mixed_precision is not None:
        keras.mixed_precision.set_global_policy(f"mixed_{config.mixed_precision}")
