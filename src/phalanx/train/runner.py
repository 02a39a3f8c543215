"""`run`: do whatever this process's role in the cluster asks."""

from __future__ import annotations

import contextlib
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from phalanx.cluster import Role, TFConfig, detect
from phalanx.errors import Interrupted, PeerError, PhalanxError, TrainingError, WorkerError
from phalanx.train import evaluation
from phalanx.train.checkpoint import Checkpoints, check_directory
from phalanx.train.config import RunConfig
from phalanx.train.context import Context
from phalanx.train.engines.base import Engine
from phalanx.train.engines.coordinator import CoordinatorEngine
from phalanx.train.engines.servers import Servers
from phalanx.train.engines.spmd import SpmdEngine
from phalanx.train.experiment import Experiment, experiment_name
from phalanx.train.feed import Feed, make_eval_data, make_train_data
from phalanx.train.hooks import (
    CheckpointSaver,
    Every,
    ExamplesPerSecond,
    Hook,
    InlineEvaluator,
    LogValues,
    ProgressBar,
    StopAtStep,
    StopOnNaN,
    SummarySaver,
)
from phalanx.train.mailbox import Mailbox, Message, Word, post
from phalanx.train.peers import serve, waiting_for_peers
from phalanx.train.session import Session
from phalanx.train.signals import StopRequest, catch_sigterm
from phalanx.train.step import Step
from phalanx.train.strategy import Formation, Way, find_devices, form, join_strategy, make_context, make_strategy
from phalanx.train.summaries import Summaries
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
    _explain_errors()
    _show_log()
    tf_config = detect()
    config = config or RunConfig.parse()
    if config.model_dir is None:
        config = config.replace(model_dir=tf_config.model_dir)
    if config.train_steps is None and config.epochs is None:
        config = config.replace(epochs=1)
    formation = form(tf_config, config)
    _prepare(config)
    if formation.task.role is Role.EVALUATOR:
        return _follow_as_evaluator(experiment, config, formation)
    if formation.is_chief:
        config = config.replace(model_dir=check_directory(config.model_dir))
        LOG.info(
            "%s, %s, as %s of %d; settings:\n%s",
            experiment_name(experiment), formation.way, formation.task,
            max(1, len(formation.cluster.addresses)), config.describe(),
        )  # fmt: skip
    if formation.way.has_ps:
        if not formation.is_chief:
            serve(formation, config)
            return Result()
        return _lead_on_ps(experiment, config, formation, hooks, tf_config)
    return _run_in_step(experiment, config, formation, hooks, tf_config)


def _run_in_step(
    experiment: Experiment,
    config: RunConfig,
    formation: Formation,
    hooks: Sequence[Hook],
    tf_config: TFConfig,
) -> Result:
    is_many = formation.way is Way.IN_STEP
    mailbox = Mailbox()
    with catch_sigterm() as stop, _telling_others(formation, mailbox, is_many):
        if is_many:
            mailbox.open()
            with waiting_for_peers(formation, config.wait_seconds):
                strategy = join_strategy(formation)
            devices = list(strategy.extended.worker_devices)
        else:
            devices = find_devices(config)
            strategy = make_strategy(devices)
        context = formation.share(config, formation.task, len(devices))
        step, master, feed = _build(experiment, context)
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
            return _lead(config, formation, step, master, engine, feed, hooks, stop, tf_config)
        engine.begin(0, 0)
        engine.follow()
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
    tf_config: TFConfig,
) -> Result:
    mailbox = Mailbox()
    mailbox.open()
    with catch_sigterm() as stop, _telling_others(formation, mailbox, True):
        with waiting_for_peers(formation, config.wait_seconds):
            servers = Servers(formation, config, experiment, mailbox)
            servers.connect()
        step, master, feed = _build(experiment, servers.contexts[0])
        engine = CoordinatorEngine(
            servers,
            step,
            master,
            element_spec=feed.train.element_spec,
            limits=clipping(step, config),
            epochs=config.epochs,
            steps_per_call=config.steps_per_call,
            xla=config.xla,
        )
        return _lead(config, formation, step, master, engine, feed, hooks, stop, tf_config)


def _lead(
    config: RunConfig,
    formation: Formation,
    step: Step,
    master: Master,
    engine: Engine,
    feed: Feed,
    hooks: Sequence[Hook],
    stop: StopRequest,
    tf_config: TFConfig,
) -> Result:
    directory = str(config.model_dir)
    checkpoints = _open_checkpoints(config, step, master)
    summaries = Summaries(directory)
    speed = ExamplesPerSecond(Every(steps=config.log_steps))
    has_evaluator = bool(tf_config.cluster.tasks(Role.EVALUATOR))
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
        [*_default_hooks(config, speed, evaluate is not None and not has_evaluator), *hooks],
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


def _default_hooks(config: RunConfig, speed: ExamplesPerSecond, evaluates: bool) -> list[Hook]:
    hooks: list[Hook] = []
    if config.train_steps is not None:
        hooks.append(StopAtStep(config.train_steps))
    hooks += [StopOnNaN(), speed, LogValues(Every(steps=config.log_steps))]
    hooks.append(SummarySaver(Every(steps=config.summary_steps), speed))
    seconds = None if config.save_steps else config.save_seconds
    hooks.append(CheckpointSaver(Every(steps=config.save_steps, seconds=seconds)))
    if evaluates:
        every = Every(steps=config.eval_every_steps, seconds=config.eval_every_seconds)
        hooks.append(InlineEvaluator(every))
    if sys.stderr.isatty():
        hooks.append(ProgressBar())
    return hooks


def _follow_as_evaluator(experiment: Experiment, config: RunConfig, formation: Formation) -> Result:
    directory = check_directory(config.model_dir)
    context = make_context(config.replace(accumulate=1), 1, 1, 0)
    data = make_eval_data(experiment, context)
    if data is None:
        raise TrainingError(
            f"{experiment_name(experiment)} has nothing to evaluate: write eval_data(context), or "
            "leave the evaluator out"
        )
    step = Step(experiment, context)
    step.build(data.element_spec, training=False)
    master = step.make_master()
    engine = SpmdEngine(
        step, master, tf.distribute.get_strategy(), context, Feed(None, lambda: data),
        devices=find_devices(config)[:1], limits={},
    )  # fmt: skip
    summaries = Summaries(directory)
    checkpoints = _open_checkpoints(config, step, master)
    result = Result()

    def evaluate_at(at: int) -> None:
        nonlocal result
        engine.weights.push()
        count = int(data.cardinality())
        values = _evaluate(
            step, engine, config.eval_steps, count if count > 0 else None, summaries, at
        )
        result = Result(at, values, model_dir=directory, model=step.model)

    with catch_sigterm() as stop:
        try:
            evaluation.follow_checkpoints(
                directory,
                checkpoints,
                evaluate_at,
                wait_seconds=config.wait_seconds,
                is_asked_to_stop=stop,
            )
        finally:
            summaries.close()
    return result


def _build(experiment: Experiment, context: Context) -> tuple[Step, Master, Feed]:
    step = Step(experiment, context)
    data = make_train_data(experiment, context)
    step.build(data.element_spec)
    master = step.make_master()
    return step, master, Feed(data, partial(make_eval_data, experiment, context))


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


@contextlib.contextmanager
def _telling_others(formation: Formation, mailbox: Mailbox, is_many: bool) -> Iterator[None]:
    """What goes wrong here is told to the others, and what went wrong there is told here."""
    if not is_many:
        yield
        return
    chief = formation.cluster.chief()
    others = [task for task in formation.cluster.tasks() if task != formation.task]
    tell = partial(post, formation.cluster, job_of_ps=formation.way.has_ps)
    me = str(formation.task)
    try:
        yield
    except Interrupted as error:
        if formation.is_chief:
            tell(others, Message(Word.AGAIN, me, str(error)))
        raise
    except BaseException as error:
        cause = _word_of_another(error, mailbox, formation)
        if formation.is_chief:
            tell(others, Message(Word.FAILED, me, _first_line(cause or error)))
        elif cause is None:
            tell([chief], Message(Word.FAILED, me, _trace(error)))
        if cause is not None:
            raise cause from None
        raise
    else:
        if formation.is_chief and formation.way.has_ps:
            tell(others, Message(Word.DONE, me))


def _word_of_another(
    error: BaseException, mailbox: Mailbox, formation: Formation
) -> PhalanxError | None:
    """When TensorFlow gives up because a peer is gone, that peer may have said why."""
    if not isinstance(error, tf.errors.OpError):
        return None
    message = mailbox.wait(5)
    if message is not None and message.word is Word.FAILED:
        if formation.is_chief:
            return WorkerError(f"{message.sender} failed:\n{message.text}")
        return TrainingError(f"{message.sender} failed: {message.text}")
    if isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError):
        return PeerError(f"a peer went away without a word: {_first_line(error)}")
    return None


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip()


def _trace(error: BaseException) -> str:
    if isinstance(error, PhalanxError):
        return str(error)
    return "".join(traceback.format_exception(error))


def _prepare(config: RunConfig) -> None:
    if config.seed is not None:
        keras.utils.set_random_seed(config.seed)
    if config.mixed_precision is not None:
        keras.mixed_precision.set_global_policy(f"mixed_{config.mixed_precision}")


def _show_log() -> None:
    """Log to standard error, unless the program has set up its own logging."""
    if logging.getLogger().handlers or LOG.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    LOG.propagate = False


def _explain_errors() -> None:
    """An error of ours that nobody catches is one message and its exit code, not a trace."""
    before: Callable[..., Any] = sys.excepthook
    if getattr(before, "explains_phalanx", False):
        return

    def explain(kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, PhalanxError):
            print(f"phalanx: {error}", file=sys.stderr)
            sys.exit(error.exit_code)
        before(kind, error, trace)

    explain.explains_phalanx = True  # type: ignore[attr-defined]
    sys.excepthook = explain
