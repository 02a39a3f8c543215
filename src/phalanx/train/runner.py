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
from phalanx.train import evaluation
from phalanx.train.checkpoint import Checkpoints, check_directory
from phalanx.train.config import RunConfig
from phalanx.train.console import explain_errors, show_log
from phalanx.train.context import Context
from phalanx.train.continuous import Follow, evaluator, follow, process_start
from phalanx.train.default_hooks import default_hooks
from phalanx.train.engines.aggregation import AggregationEngine
from phalanx.train.engines.base import Engine
from phalanx.train.engines.coordinator import CoordinatorEngine
from phalanx.train.engines.spmd import SpmdEngine
from phalanx.train.experiment import Experiment, experiment_name, is_written
from phalanx.train.feed import Feed, make_eval_data, make_train_data
from phalanx.train.hooks import Every, ExamplesPerSecondHook, Hook
from phalanx.train.mailbox import Mailbox
from phalanx.train.own_data import can_travel, serve_data
from phalanx.train.peers import answering, serve, wait_for_peers
from phalanx.train.reasons import telling_others
from phalanx.train.servers import Servers
from phalanx.train.session import Session
from phalanx.train.signals import StopRequest, catch_sigterm
from phalanx.train.staging import is_staged, staged, there_again
from phalanx.train.step import Step
from phalanx.train.strategy import (
    Formation,
    Way,
    find_devices,
    form,
    join_strategy,
    make_strategy,
)
from phalanx.train.summaries import Summaries
from phalanx.train.tables import is_table
from phalanx.train.weights import Master

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
    formation = form(tf_config, config)
    if formation.is_chief and tf_config.model_dir not in (None, config.model_dir):
        LOG.warning(
            "model_dir is %s, as the program sets it; %s in TF_CONFIG does not count: leave "
            "it open in the program to use that",
            config.model_dir, tf_config.model_dir,
        )  # fmt: skip
    evaluates = formation.task.role is Role.EVALUATOR
    if not is_staged(config.model_dir) or not (evaluates or formation.is_chief):
        return _run_as(experiment, config, formation, hooks)
    remote = str(config.model_dir)
    with staged(remote, evaluates) as local:
        here = config.replace(model_dir=local)
        result = _run_as(experiment, here, formation, hooks)
    return there_again(result, remote, local)


def _run_as(
    experiment: Experiment,
    config: RunConfig,
    formation: Formation,
    hooks: Sequence[Hook],
) -> Result:
    _prepare(config)
    if formation.task.role is Role.EVALUATOR:
        return _follow_as_evaluator(experiment, config)
    if formation.is_chief:
        config = config.replace(model_dir=check_directory(config.model_dir))
        LOG.info(
            "%s, %s, as %s of %d; settings:\n%s",
            experiment_name(experiment), formation.way, formation.task,
            max(1, len(formation.cluster.addresses)), config.describe(),
        )  # fmt: skip
    if formation.way.has_ps:
        if not formation.is_chief:
            is_trainer = formation.task in formation.trainers
            make = partial(_make_own_data, experiment, config, formation)
            serve(formation, config, make if is_trainer else None)
            return Result()
        return _lead_on_ps(experiment, config, formation, hooks)
    return _run_in_step(experiment, config, formation, hooks)


def _run_in_step(
    experiment: Experiment,
    config: RunConfig,
    formation: Formation,
    hooks: Sequence[Hook],
) -> Result:
    is_many = formation.way is Way.IN_STEP
    mailbox = Mailbox()
    with telling_others(formation, mailbox):
        if is_many:
            mailbox.open()
            # TensorFlow waits for all peers without limit, and lets no other thread run meanwhile.
            with answering(formation.cluster.addresses[formation.task]):
                wait_for_peers(formation, config.wait_seconds)
            strategy = join_strategy(formation)
            devices = list(strategy.extended.worker_devices)
        else:
            devices = find_devices(config)
            strategy = make_strategy(devices)
        # TensorFlow has put its own handler in place by now.
        with catch_sigterm() as stop:
            context = formation.share(config, formation.task, len(devices))
            step, master, feed = _build(experiment, context, hooks)
            engine = SpmdEngine(
                step,
                master,
                strategy,
                context,
                feed,
                devices=devices,
                on_host=config.variables == "cpu",
                limits=clipping(step, config),
                is_many=is_many,
                is_leader=formation.is_chief,
                accumulate=config.accumulate,
                xla=config.xla,
                steps_per_call=config.steps_per_call,
                is_asked_to_stop=stop,
            )
            if formation.is_chief:
                return _lead(config, formation, step, master, engine, feed, hooks, stop)
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
    formation: Formation,
    hooks: Sequence[Hook],
) -> Result:
    mailbox = Mailbox()
    mailbox.open()
    with telling_others(formation, mailbox):
        wait_for_peers(formation, config.wait_seconds)
        servers = Servers(formation, config, experiment, mailbox)
        servers.connect()
        with catch_sigterm() as stop:
            result = _build_and_lead_on_ps(experiment, config, servers, hooks, stop)
        # What TensorFlow keeps on the servers must go while they are still there.
        gc.collect()
        return result


def _make_own_data(experiment: Experiment, config: RunConfig, formation: Formation) -> None:
    """Serve this worker's share to itself, if the chief cannot send it."""
    make = partial(make_train_data, experiment, formation.share(config, formation.task))
    data = make()
    if not can_travel(data, make):
        serve_data(data)


def _build_and_lead_on_ps(
    experiment: Experiment,
    config: RunConfig,
    servers: Servers,
    hooks: Sequence[Hook],
    stop: StopRequest,
) -> Result:
    step, master, feed = _build(experiment, servers.contexts[0], hooks)
    check_fits_ps(config, step, master)
    element_spec, limits = feed.train.element_spec, clipping(step, config)
    if not can_travel(feed.train, partial(make_train_data, experiment, servers.contexts[0])):
        servers.own_data = element_spec
    is_async = servers.formation.way is Way.ASYNC_PS
    kind = CoordinatorEngine if is_async else AggregationEngine
    engine = kind(servers, step, master, element_spec, limits)
    return _lead(config, servers.formation, step, master, engine, feed, hooks, stop)


def check_fits_ps(config: RunConfig, step: Step, master: Master) -> None:
    """What cannot be trained on parameter servers is refused."""
    if isinstance(step.optimizer, keras.optimizers.LossScaleOptimizer):
        raise ConfigurationError(
            "mixed_precision is float16, whose loss scale parameter servers cannot agree on: use "
            "bfloat16, which needs none, or train in step without parameter servers"
        )
    if config.xla and any(is_table(variable) for variable in master.trainable):
        raise ConfigurationError(
            "xla is set, but the model looks up rows on parameter servers, which XLA cannot: leave "
            "--xla out"
        )


def _lead(
    config: RunConfig,
    formation: Formation,
    step: Step,
    master: Master,
    engine: Engine,
    feed: Feed,
    hooks: Sequence[Hook],
    stop: StopRequest,
) -> Result:
    directory = str(config.model_dir)
    checkpoints = _open_checkpoints(config, step, master)
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
            *default_hooks(config, speed, evaluate is not None and not formation.has_evaluator),
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
    step: Step, engine: Engine, limit: int | None, count: int | None, summaries: Summaries, at: int
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
) -> tuple[Step, Master, Feed]:
    step = Step(experiment, context)
    step.measures_gradients = any(hook.needs_gradient_norm for hook in hooks)
    data = make_train_data(experiment, context)
    make_evaluation = partial(make_eval_data, experiment, context)
    is_own = is_written(experiment, "train_step") or is_written(experiment, "eval_step")
    tested = make_evaluation() if is_own else None
    step.build(data.element_spec, None if tested is None else tested.element_spec)
    master = step.make_master()
    return step, master, Feed(data, make_evaluation)


def _open_checkpoints(config: RunConfig, step: Step, master: Master) -> Checkpoints:
    return Checkpoints(
        str(config.model_dir),
        step,
        master,
        keep_max=config.keep_max,
        keep_every_hours=config.keep_every_hours,
        global_batch_size=config.global_batch_size,
    )


def clipping(step: Step, config: RunConfig) -> dict[str, float | None]:
    """The limits that the optimizer and the config put on gradients."""
    optimizer = step.optimizer
    return {
        "value": optimizer.clipvalue,
        "norm": optimizer.clipnorm,
        "global_norm": config.clip_norm or optimizer.global_clipnorm,
    }


def _prepare(config: RunConfig) -> None:
    if config.seed is not None:
        keras.utils.set_random_seed(config.seed)
    if config.mixed_precision is not None:
        keras.mixed_precision.set_global_policy(f"mixed_{config.mixed_precision}")
