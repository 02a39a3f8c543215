"""The session for loops that the user writes."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import tensorflow as tf

from phalanx.cluster.job_environment import read_run_id, will_be_restarted
from phalanx.errors import ConfigurationError, Interrupted
from phalanx.train.config import RunConfig
from phalanx.train.console import explain_errors, show_log
from phalanx.train.context import Context
from phalanx.train.custom_loop.custom_step import CustomStep, CustomVariables, SessionData
from phalanx.train.custom_loop.engines import CustomEngine, DispatchedEngine, ReplicatedEngine
from phalanx.train.custom_loop.task_spec import TaskSpec, TaskSpecDef
from phalanx.train.experiment import Experiment
from phalanx.train.hooks import CallbackHook, Every, ExamplesPerSecondHook, Hook
from phalanx.train.loop.base import SessionCheckpoints
from phalanx.train.loop.checkpoint_evaluator import (
    WatchOptions,
    pass_over_unreadable,
    process_start_time,
    watch_checkpoints,
)
from phalanx.train.loop.default_hooks import default_hooks
from phalanx.train.loop.position import Position
from phalanx.train.loop.session import Session
from phalanx.train.model_dir.checkpoint import Checkpoints, check_directory
from phalanx.train.model_dir.layout import step_of
from phalanx.train.model_dir.lease import hold_lease
from phalanx.train.model_dir.summaries import Summaries
from phalanx.train.runtime.failures import propagate_failures
from phalanx.train.runtime.joining import join_trainers, open_channel
from phalanx.train.runtime.ps_cluster import ParameterServerCluster
from phalanx.train.runtime.signals import StopRequest, catch_sigterm
from phalanx.train.runtime.topology import Strategy, resolve_topology
from phalanx.train.types import Callback, Dataset, Model, TFStrategy, UserFunction
from phalanx.train.variables.host_variables import HostVariables

LOG = logging.getLogger("phalanx")


class _Running(NamedTuple):
    session: Session
    engine: CustomEngine


class DistributedSession:
    """Runs a loop that you write, with hooks, checkpoints and summaries, on any cluster.

        stop = hooks.StopAtStepHook(1000)
        with phalanx.DistributedSession(checkpoint_dir="runs/a", hooks=[stop]) as session:
            with session.scope():
                model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
                optimizer = keras.optimizers.SGD(0.1)
                optimizer.build(model.trainable_variables)
            session.dataset(lambda it: points.shard(it.num_shards, it.shard).batch(32))

            def step(batch):
                x, y = batch
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
                    share = loss / session.num_replicas
                gradients = tape.gradient(share, model.trainable_weights)
                optimizer.apply_gradients(zip(gradients, model.trainable_weights))
                return loss

            while not session.should_stop():
                session.run(step)

    Without parameter servers, every task runs the loop. In a cluster with parameter servers only
    the chief does: on all other tasks the `with` statement serves the chief, and the program exits
    there when the chief is done.

    Args:
        task_spec: This process's task and its cluster; by default read from the environment.
        checkpoint_dir: Where checkpoints and summaries are written; by default the `model_dir` of
            TF_CONFIG.
        hooks: Hooks that run in every task that runs the loop.
        chief_only_hooks: Hooks that run on the chief only.
        callbacks: Keras callbacks, which run on the chief, and see the model that is assigned to
            `session.model`. Each step is a batch, and the whole loop is one epoch.
        save_checkpoint_secs: Save a checkpoint every so many seconds.
        save_checkpoint_steps: Save a checkpoint every so many steps.
        save_summaries_steps: Write summaries every so many steps.
        save_summaries_secs: Write summaries every so many seconds instead.
        log_step_count_steps: Log the speed every so many steps.
        keep_checkpoint_max: How many checkpoints to keep.
        batch_size: The number of examples that one replica reads for each step.
        wait_seconds: How long to wait for tasks that do not respond.
        scaffold: For graphs only: rejected here.
        config: Settings of a graph's session: without effect here.
        stop_grace_period_secs: Without effect: the session waits for what it has started.

    Raises:
        ConfigurationError: If the program builds a TensorFlow 1 graph, which is for the session in
            `phalanx.compat.tf1.distributed`, or a hook is none of `phalanx.hooks`.
    """

    def __init__(
        self,
        task_spec: TaskSpecDef | None = None,
        checkpoint_dir: str | None = None,
        hooks: Sequence[Hook] = (),
        chief_only_hooks: Sequence[Hook] = (),
        *,
        callbacks: Sequence[Callback] = (),
        save_checkpoint_secs: float | None = 600,
        save_checkpoint_steps: int | None = None,
        save_summaries_steps: int | None = 100,
        save_summaries_secs: float | None = None,
        log_step_count_steps: int | None = 100,
        keep_checkpoint_max: int = 5,
        batch_size: int = 32,
        wait_seconds: float = 300,
        scaffold: object = None,
        config: object = None,
        stop_grace_period_secs: float | None = None,
    ) -> None:
        _reject_graph(scaffold, [*hooks, *chief_only_hooks])
        for name, value in (("config", config), ("stop_grace_period_secs", stop_grace_period_secs)):
            if value is not None:
                LOG.warning("DistributedSession: %s has no effect without a graph", name)
        self.task_spec = task_spec or TaskSpec()
        self._hooks = list(hooks)
        self._chief_only_hooks = list(chief_only_hooks)
        self._callbacks = callbacks
        self._model: Model = None
        if callbacks:
            # Wrong objects are rejected before anything is started.
            CallbackHook(callbacks)
        self._batch_size = batch_size
        self._config = RunConfig(
            model_dir=checkpoint_dir or self.task_spec.config.model_dir,
            save_seconds=save_checkpoint_secs,
            save_steps=save_checkpoint_steps,
            summary_steps=None if save_summaries_secs else save_summaries_steps,
            summary_seconds=save_summaries_secs,
            log_steps=log_step_count_steps,
            keep_max=keep_checkpoint_max,
            chief_trains=False,
            wait_seconds=wait_seconds,
        )
        self._variables = CustomVariables()
        self._step = CustomStep(self._variables)
        self._data: SessionData | None = None
        self._stack = contextlib.ExitStack()
        self._ps_cluster: ParameterServerCluster | None = None
        self._tf_strategy: TFStrategy = None
        self._devices: list[str] = []
        self._stop = StopRequest()
        self._running: _Running | None = None
        self._evaluated_step = 0

    def __enter__(self) -> Self:
        explain_errors()
        show_log()
        self.task_spec.create_server()
        self._topology = resolve_topology(self.task_spec.config, self._config)
        directory = ""
        if self.is_chief or self.task_spec.is_evaluator():
            directory = check_directory(self._config.model_dir)
            self._config = self._config.replace(model_dir=directory)
        with contextlib.ExitStack() as stack:
            addresses = self._topology.cluster.addresses.values()
            stack.enter_context(hold_lease(directory if self.is_chief else None, addresses))
            if self.task_spec.is_evaluator():
                self._tf_strategy = tf.distribute.get_strategy()
            else:
                self._connect(stack)
            self._stop = stack.enter_context(catch_sigterm())
            self._stack = stack.pop_all()
        return self

    def _connect(self, stack: contextlib.ExitStack) -> None:
        topology = self._topology
        channel = open_channel(topology)
        stack.enter_context(propagate_failures(topology, channel))
        if topology.strategy.has_ps:
            self._set_global_batch_size(1)
            experiment = Experiment(train_data=self._make_shard)
            self._ps_cluster = ParameterServerCluster(topology, self._config, experiment, channel)
            self._ps_cluster.connect()
            self._tf_strategy = self._ps_cluster.coordinator.strategy
        else:
            self._tf_strategy, self._devices = join_trainers(topology, self._config)
            self._set_global_batch_size(len(self._devices))

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def is_chief(self) -> bool:
        """Whether this task is the chief, which alone saves, logs and writes summaries."""
        return self._topology.is_chief

    @property
    def num_replicas(self) -> int:
        """How many replicas make one update. Their gradients are summed: divide the loss by it."""
        return int(self._tf_strategy.num_replicas_in_sync)

    @property
    def step(self) -> int:
        """How many steps were run, including those before a restart."""
        return self._begin().session.step

    @property
    def learning_rate(self) -> float:
        """The learning rate of the first optimizer that was created in the scope."""
        return self._variables.learning_rate()

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._variables.set_learning_rate(value)

    @property
    def model(self) -> Model:
        """The model that callbacks see; assign it before the first step."""
        return self._model

    @model.setter
    def model(self, model: Model) -> None:
        self._model = model

    @property
    def checkpoint_dir(self) -> str:
        """The directory of checkpoints and summaries."""
        return str(self._config.model_dir)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Create the variables of the model and the optimizer here, before the first step.

        Raises:
            ConfigurationError: If the session has begun.
        """
        if self._running is not None:
            raise ConfigurationError(
                "the session has begun: create all variables before should_stop"
            )
        with self._tf_strategy.scope(), self._variables.track():
            yield

    def dataset(self, make: UserFunction) -> None:
        """Set the data that the steps read. Data that ends is read again.

        Args:
            make: `make(context)` returns the dataset of one worker, in batches. The context tells
                the shard: `data.shard(context.num_shards, context.shard)`. A function without
                arguments can ask the task spec: `data.shard(spec.num_workers, spec.shard_index)`.
        """
        self._data = SessionData(make, self.task_spec)

    def should_stop(self) -> bool:
        """Return whether a hook or another task asked to stop. The first call restores."""
        session, engine = self._begin()
        stops = engine.agree_to_stop(session.should_stop())
        if stops:
            session.is_interrupted |= engine.is_interrupted()
            session.request_stop(
                "asked to end (SIGTERM)" if session.is_interrupted else "another task asked to stop"
            )
        return stops

    def run(self, step: UserFunction) -> dict[str, float]:
        """Run a step on every replica; on parameter servers, dispatch steps until one is done.

        Args:
            step: Takes a batch, and returns the loss or a dict with the key `loss` and other
                values. It is traced once. A `tf.function` distributes itself: it takes the batches
                of all replicas, as the strategy distributes them.

        Returns:
            The mean of each value that the step returned.
        """
        session, engine = self._begin()
        engine.use(step)
        before = session.total_report.copy()
        session.advance()
        report = session.total_report - before
        return session.read_values(report) if report[0] > 0 else {}

    def request_stop(self, reason: str = "the program asked to stop") -> None:
        """Stop the loop before the next step, in all tasks."""
        self._begin().session.request_stop(reason)

    def save(self) -> str:
        """Write a checkpoint, on the chief, and return its path."""
        return self._begin().session.save()

    def checkpoints(
        self, throttle_seconds: float = 0.0, limit_seconds: float | None = None, skip: bool = False
    ) -> Iterator[int]:
        """Load each new checkpoint into the variables, for an evaluator, until the final one.

        Write the metrics of each checkpoint with `record`.

        Args:
            throttle_seconds: The minimal time from one checkpoint to the next.
            limit_seconds: End after so many seconds.
            skip: Load only the newest checkpoint, instead of each one.

        Yields:
            The step of the checkpoint.
        """
        self._variables.make_copies()
        checkpoints = self._open_checkpoints()
        how = WatchOptions(
            skip,
            throttle_seconds,
            limit_seconds,
            self._config.wait_seconds,
            process_start_time(),
            chief_restarts=will_be_restarted(),
            job=read_run_id(),
        )
        for path in watch_checkpoints(self.checkpoint_dir, how, self._stop):
            loaded = False
            with pass_over_unreadable(path):
                checkpoints.load_model(path)
                loaded = True
            if loaded:
                self._variables.push()
                self._evaluated_step = step_of(path)
                yield self._evaluated_step
        if self._stop():
            raise Interrupted("the evaluator received SIGTERM: start it again to continue")

    def record(self, **values: float) -> None:
        """Write the metrics of the last checkpoint to event files, eval.jsonl and the log."""
        summaries = Summaries(self.checkpoint_dir)
        metrics = {name: float(value) for name, value in values.items()}
        summaries.write_evaluation(self._evaluated_step, metrics)
        summaries.close()
        shown = ", ".join(f"{name} = {value:.6g}" for name, value in metrics.items())
        LOG.info("Evaluation of step %d: %s", self._evaluated_step, shown)

    def _begin(self) -> _Running:
        """Begin the session when it is first needed: restore, and open the data."""
        if self._running is not None:
            return self._running
        if self.task_spec.is_evaluator():
            raise ConfigurationError(
                "this task is the evaluator: iterate over session.checkpoints() instead of training"
            )
        self._variables.make_copies()
        engine: CustomEngine
        checkpoints: SessionCheckpoints
        if self._ps_cluster is not None:
            if self._data is not None:
                self._data.check_can_be_sent(self._ps_cluster.contexts[0])
            engine = DispatchedEngine(self._ps_cluster, self._step, self._data is not None)
            checkpoints = self._open_checkpoints()
        else:
            engine = self._make_replicated()
            checkpoints = _ChiefCheckpoints(
                self._open_checkpoints() if self.is_chief else None, engine
            )
        speed = ExamplesPerSecondHook(Every(steps=self._config.log_steps))
        hooks = self._hooks
        if self.is_chief:
            callback_hooks = self._make_callback_hooks()
            defaults = default_hooks(self._config, speed, False, callback_hooks, self._topology)
            hooks = [*callback_hooks, *defaults, *hooks, *self._chief_only_hooks]
        summaries = Summaries(self.checkpoint_dir)
        session = Session(
            self._step, engine, checkpoints, summaries, hooks, is_asked_to_stop=self._stop
        )

        def log_end(kind: object, error: BaseException | None, trace: object) -> None:
            if error is None:
                LOG.info("finished: %s", session.stop_reason or "the loop ended")

        # In reverse order: the session ends, the summaries are closed, the end is logged.
        self._stack.push(log_end)
        self._stack.callback(summaries.close)
        self._stack.enter_context(session)
        self._running = _Running(session, engine)
        return self._running

    def _make_callback_hooks(self) -> list[CallbackHook]:
        return [CallbackHook(self._callbacks, model=self._model)] if self._callbacks else []

    def _make_replicated(self) -> ReplicatedEngine:
        topology = self._topology
        context = topology.context_for(self._config, topology.task, len(self._devices))
        return ReplicatedEngine(
            self._tf_strategy,
            self._step,
            None if self._data is None else lambda: self._make_shard(context),
            hosts=len(topology.trainers) if topology.strategy is Strategy.ALL_REDUCE else 1,
            is_chief=self.is_chief,
            is_asked_to_stop=self._stop,
        )

    def _make_shard(self, context: Context) -> Dataset:
        assert self._data is not None
        return self._data.make_shard(context)

    def _open_checkpoints(self) -> Checkpoints:
        # The variables of the optimizers are among the others.
        host_variables = HostVariables([], [], tf.train.Checkpoint())
        return Checkpoints(
            self.checkpoint_dir, self._step, host_variables,
            keep_max=self._config.keep_max, global_batch_size=self._config.global_batch_size,
        )  # fmt: skip

    def _set_global_batch_size(self, replicas_per_task: int) -> None:
        replicas = len(self._topology.trainers) * replicas_per_task
        self._config = self._config.replace(global_batch_size=self._batch_size * replicas)


def _reject_graph(scaffold: object, hooks: Sequence[object]) -> None:
    """Raise an error if the program is one for the session of TensorFlow 1 graphs."""
    found = ""
    if not tf.compat.v1.executing_eagerly_outside_functions():
        found = "this program builds a graph (eager execution is off)"
    elif scaffold is not None:
        found = "a scaffold is part of a graph"
    elif other := [hook for hook in hooks if not isinstance(hook, Hook)]:
        found = f"{type(other[0]).__name__} is not a hook of phalanx.hooks"
    if found:
        raise ConfigurationError(
            f"{found}: phalanx.DistributedSession runs steps without a graph; for TensorFlow 1, "
            "use DistributedSession, StopAtTimeHook and LoadCheckpoint of "
            "phalanx.compat.tf1.distributed"
        )


class _ChiefCheckpoints:
    """The chief's checkpoints; the other tasks only learn the step to begin with."""

    def __init__(self, checkpoints: Checkpoints | None, engine: ReplicatedEngine) -> None:
        self._checkpoints = checkpoints
        self._engine = engine

    @property
    def directory(self) -> str:
        return self._checkpoints.directory if self._checkpoints else ""

    @property
    def latest(self) -> str | None:
        return self._checkpoints.latest if self._checkpoints else None

    def restore(self, pass_over: int = 0) -> tuple[int, Position]:
        step, position = 0, Position()
        if self._checkpoints:
            step, position = self._checkpoints.restore(pass_over)
        batches = self._engine.broadcast_number(position.batches)
        position = dataclasses.replace(position, batches=batches)
        return self._engine.broadcast_number(step), position

    def save(self, step: int, position: Position) -> str | None:
        return self._checkpoints.save(step, position) if self._checkpoints else ""

    def finish_save(self, waits: bool) -> str | None:
        return self._checkpoints.finish_save(waits) if self._checkpoints else None

    def heartbeat(self, step: int, now: float) -> None:
        if self._checkpoints:
            self._checkpoints.heartbeat(step, now)

    def mark_done(self, step: int) -> None:
        if self._checkpoints:
            self._checkpoints.mark_done(step)

    def mark_failed(self, error: BaseException) -> None:
        if self._checkpoints:
            self._checkpoints.mark_failed(error)
