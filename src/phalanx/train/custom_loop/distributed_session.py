"""The session for people who write their own loop."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.config import RunConfig
from phalanx.train.console import explain_errors, show_log
from phalanx.train.context import Context
from phalanx.train.custom_loop.custom_step import CustomStep, Variables
from phalanx.train.custom_loop.dispatched_engine import DispatchedEngine
from phalanx.train.custom_loop.replicated_engine import ReplicatedEngine
from phalanx.train.custom_loop.task_spec import TaskSpec, TaskSpecDef
from phalanx.train.experiment import Experiment, call
from phalanx.train.hooks import Every, ExamplesPerSecondHook, Hook
from phalanx.train.loop.checkpoint_evaluator import (
    WatchOptions,
    ignore_deleted_checkpoint,
    process_start_time,
    step_of,
    watch_checkpoints,
)
from phalanx.train.loop.default_hooks import default_hooks
from phalanx.train.loop.session import Position, Session
from phalanx.train.model_dir.checkpoint import Checkpoints, check_directory
from phalanx.train.model_dir.summaries import Summaries
from phalanx.train.runtime.control_channel import ControlChannel
from phalanx.train.runtime.dataset_graph import graph_of, shuffles_before_shard
from phalanx.train.runtime.failures import propagate_failures
from phalanx.train.runtime.peers import answering, wait_for_peers
from phalanx.train.runtime.ps_cluster import ParameterServerCluster
from phalanx.train.runtime.signals import StopRequest, catch_sigterm
from phalanx.train.runtime.topology import (
    Strategy,
    find_devices,
    join_all_reduce_strategy,
    make_strategy,
    resolve_topology,
)
from phalanx.train.runtime.worker_data import calls_python

LOG = logging.getLogger("phalanx")


class DistributedSession:
    """Your own loop, with hooks, checkpoints and summaries, on any shape of cluster.

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

    On a parameter server, and on a worker of a cluster that has some, the `with` serves the chief,
    and the program ends there when the chief is done. In step, every task comes through the loop.
    """

    def __init__(
        self,
        task_spec: TaskSpecDef | None = None,
        checkpoint_dir: str | None = None,
        hooks: Sequence[Hook] = (),
        chief_only_hooks: Sequence[Hook] = (),
        *,
        save_checkpoint_secs: float | None = 600,
        save_checkpoint_steps: int | None = None,
        save_summaries_steps: int | None = 100,
        log_step_count_steps: int | None = 100,
        keep_checkpoint_max: int = 5,
        batch_size: int = 32,
        wait_seconds: float = 300,
    ) -> None:
        self.task_spec = task_spec or TaskSpec()
        self._hooks = list(hooks)
        self._chief_only_hooks = list(chief_only_hooks)
        self._batch_size = batch_size
        self._config = RunConfig(
            model_dir=checkpoint_dir or self.task_spec.config.model_dir,
            save_seconds=save_checkpoint_secs,
            save_steps=save_checkpoint_steps,
            summary_steps=save_summaries_steps,
            log_steps=log_step_count_steps,
            keep_max=keep_checkpoint_max,
            chief_trains=False,
            wait_seconds=wait_seconds,
        )
        self._variables = Variables()
        self._step = CustomStep(self._variables)
        self._make_data: Callable[..., Any] | None = None
        self._stack = contextlib.ExitStack()
        self._mailbox = ControlChannel()
        self._ps_cluster: ParameterServerCluster | None = None
        self._strategy: Any = None
        self._devices: list[str] = []
        self._stop = StopRequest()
        self._engine: Any = None
        self._session: Session | None = None
        self._evaluated = 0

    def __enter__(self) -> DistributedSession:
        explain_errors()
        show_log()
        self.task_spec.create_server()
        self._topology = resolve_topology(self.task_spec.config, self._config)
        if self.is_chief or self.task_spec.is_evaluator():
            directory = check_directory(self._config.model_dir)
            self._config = self._config.replace(model_dir=directory)
        try:
            if not self.task_spec.is_evaluator():
                self._connect()
            else:
                self._strategy = tf.distribute.get_strategy()
            self._stop = self._stack.enter_context(catch_sigterm())
        except BaseException as error:
            self._stack.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def _connect(self) -> None:
        topology = self._topology
        self._stack.enter_context(propagate_failures(topology, self._mailbox))
        if topology.strategy is Strategy.ONE_PROCESS:
            self._devices = find_devices(self._config)
            self._strategy = make_strategy(self._devices)
        elif topology.strategy.has_ps:
            self._mailbox.open()
            wait_for_peers(topology, self._config.wait_seconds)
            self._size_batches(1)
            experiment = Experiment(train_data=self._make_share)
            self._ps_cluster = ParameterServerCluster(
                topology, self._config, experiment, self._mailbox
            )
            self._ps_cluster.connect()
            self._strategy = self._ps_cluster.coordinator.strategy
        else:
            self._mailbox.open()
            with answering(topology.cluster.addresses[topology.task]):
                wait_for_peers(topology, self._config.wait_seconds)
            self._strategy = join_all_reduce_strategy(topology)
            self._devices = list(self._strategy.extended.worker_devices)
        if not topology.strategy.has_ps:
            self._size_batches(len(self._devices))

    @property
    def is_chief(self) -> bool:
        """Whether this task leads: it alone saves, logs and writes summaries."""
        return self._topology.is_chief

    @property
    def num_replicas(self) -> int:
        """How many replicas make one update: their gradients are summed, so divide by it."""
        return int(self._strategy.num_replicas_in_sync)

    @property
    def step(self) -> int:
        """How many steps were made, in earlier sessions too."""
        return self._running().step

    @property
    def learning_rate(self) -> float:
        """That of the first optimizer made in the scope."""
        return self._variables.learning_rate()

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._variables.set_learning_rate(value)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Where variables are made: the model's and the optimizer's, before the first step."""
        if self._session is not None:
            raise ConfigurationError("the session has begun: make all variables before should_stop")
        with self._strategy.scope(), self._variables.watch():
            yield

    def dataset(self, make: Callable[..., Any]) -> None:
        """What the steps read. `make(context)` gives the data of one worker, in batches.

        The context says which share: `data.shard(context.num_shards, context.shard)`. A function
        without arguments may ask the task spec: `data.shard(spec.num_workers, spec.shard_index)`.
        Data that ends is read again.
        """
        self._make_data = make

    def should_stop(self) -> bool:
        """Whether a hook, or another task, asked to stop. The first call restores."""
        session = self._running()
        stops: bool = self._engine.agree_to_stop(session.should_stop())
        if stops:
            session.is_interrupted |= self._engine.is_interrupted()
            asked = session.is_interrupted
            session.request_stop("asked to end (SIGTERM)" if asked else "another task asked for it")
        return stops

    def run(self, step: Callable[..., Any]) -> dict[str, float]:
        """Run a step on every replica (on ps: hand out steps until one is done); what it returned.

        `step` takes a batch and returns the loss, or a dict with it as `loss` and other values. It
        is traced once. A `tf.function` is taken to distribute itself: it gets the batches of all
        replicas as the strategy gives them.
        """
        session = self._running()
        self._engine.use(step)
        before = session.total_report.copy()
        session.advance()
        report = session.total_report - before
        return session.read_values(report) if report[0] > 0 else {}

    def request_stop(self, reason: str = "the program asked for it") -> None:
        """End the loop before the next step, in all tasks."""
        self._running().request_stop(reason)

    def save(self) -> str:
        """Write a checkpoint now; on the chief."""
        return self._running().save()

    def checkpoints(
        self, throttle_seconds: float = 0.0, limit_seconds: float | None = None, skip: bool = False
    ) -> Iterator[int]:
        """For an evaluator: each new checkpoint's step, with its values in the variables.

        It ends after the run's final checkpoint. Write down what was found with `record`.
        """
        self._variables.copy()
        checkpoints = self._open_checkpoints()
        how = WatchOptions(
            skip, throttle_seconds, limit_seconds, self._config.wait_seconds, process_start_time()
        )
        for path in watch_checkpoints(self.checkpoint_dir, how, self._stop):
            loaded = False
            with ignore_deleted_checkpoint(path):
                checkpoints.load_model(path)
                loaded = True
            if loaded:
                self._variables.push()
                self._evaluated = step_of(path)
                yield self._evaluated

    def record(self, **values: float) -> None:
        """Write an evaluator's figures for its checkpoint: event files, eval.jsonl, the log."""
        summaries = Summaries(self.checkpoint_dir)
        numbers = {name: float(value) for name, value in values.items()}
        summaries.write_evaluation(self._evaluated, numbers)
        summaries.close()
        shown = ", ".join(f"{name} = {value:.6g}" for name, value in numbers.items())
        LOG.info("Evaluation of step %d: %s", self._evaluated, shown)

    @property
    def checkpoint_dir(self) -> str:
        """Where checkpoints and summaries are."""
        return str(self._config.model_dir)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._session is not None:
                try:
                    self._session.__exit__(kind, error, trace)
                finally:
                    self._session.summaries.close()
                LOG.info("finished: %s", self._session.stop_reason or "the loop ended")
        except BaseException as failure:
            if not self._stack.__exit__(type(failure), failure, failure.__traceback__):
                raise
        else:
            self._stack.__exit__(kind, error, trace)

    def _running(self) -> Session:
        """The loop's own session, which begins when it is first needed."""
        if self._session is not None:
            return self._session
        if self.task_spec.is_evaluator():
            raise ConfigurationError(
                "this task is the evaluator: go through session.checkpoints() instead of training"
            )
        self._variables.copy()
        checkpoints: Any
        if self._ps_cluster is not None:
            self._engine = self._make_dispatched(self._ps_cluster)
            checkpoints = self._open_checkpoints()
        else:
            self._engine = self._make_replicated()
            checkpoints = _SharedCheckpoints(
                self._open_checkpoints() if self.is_chief else None, self._engine
            )
        speed = ExamplesPerSecondHook(Every(steps=self._config.log_steps))
        hooks = self._hooks
        if self.is_chief:
            hooks = [*default_hooks(self._config, speed, False), *hooks, *self._chief_only_hooks]
        session = Session(
            self._step,
            self._engine,
            checkpoints,
            Summaries(self.checkpoint_dir),
            hooks,
            is_asked_to_stop=self._stop,
        )
        session.__enter__()
        self._session = session
        return session

    def _make_replicated(self) -> ReplicatedEngine:
        hosts = (
            len(self._topology.trainers) if self._topology.strategy is Strategy.ALL_REDUCE else 1
        )
        context = self._topology.share(self._config, self._topology.task, len(self._devices))
        return ReplicatedEngine(
            self._strategy,
            self._step,
            None if self._make_data is None else lambda: self._make_share(context),
            hosts=hosts,
            is_leader=self.is_chief,
            is_asked_to_stop=self._stop,
        )

    def _make_dispatched(self, ps_cluster: ParameterServerCluster) -> DispatchedEngine:
        if self._make_data is not None:
            self._check_travels(ps_cluster.contexts[0])
        return DispatchedEngine(ps_cluster, self._step, has_data=self._make_data is not None)

    def _check_travels(self, context: Context) -> None:
        """The function that makes the data is sent to the workers; a dataset cannot be."""
        function = tf.function(lambda: self._make_share(context), autograph=False)
        made = function.get_concrete_function()
        captured = made.captured_inputs
        if any(tensor.dtype == tf.variant for tensor in captured):
            raise ConfigurationError(
                "the function given to session.dataset uses a dataset that was made outside of it, "
                "which cannot be sent to the workers: make the whole dataset inside the function"
            )
        graph = made.graph.as_graph_def()
        if calls_python(graph):
            raise ConfigurationError(
                "the function given to session.dataset calls Python (from_generator, py_function, "
                "numpy_function), which cannot be sent to the workers: use TensorFlow's operations "
                "alone, or phalanx.run, where each worker makes its data itself"
            )
        self._warn_of_shuffles(graph, context)

    def _make_share(self, context: Context) -> Any:
        assert self._make_data is not None
        with self.task_spec.reading_share(context.num_shards, context.shard):
            data = call(self._make_data, context)
        if tf.executing_eagerly():
            self._warn_of_shuffles(graph_of(data), context)
        return data

    def _warn_of_shuffles(self, graph: Any, context: Context) -> None:
        if context.num_shards > 1 and shuffles_before_shard(graph):
            LOG.warning(
                "the data is shuffled before it is sharded, so that workers read some examples "
                "twice and others never: shard first, then shuffle"
            )

    def _open_checkpoints(self) -> Checkpoints:
        step: Any = self._step
        host_variables: Any = self._variables
        return Checkpoints(
            self.checkpoint_dir, step, host_variables,
            keep_max=self._config.keep_max, global_batch_size=self._config.global_batch_size,
        )  # fmt: skip

    def _size_batches(self, replicas_per_task: int) -> None:
        replicas = len(self._topology.trainers) * replicas_per_task
        self._config = dataclasses.replace(
            self._config, global_batch_size=self._batch_size * replicas
        )


class _SharedCheckpoints:
    """The chief's checkpoints; in the other tasks, only the step they begin with."""

    def __init__(self, own: Checkpoints | None, engine: ReplicatedEngine) -> None:
        self._own = own
        self._engine = engine

    @property
    def directory(self) -> str:
        return self._own.directory if self._own else ""

    @property
    def latest(self) -> str | None:
        return self._own.latest if self._own else None

    def restore(self) -> tuple[int, Position]:
        step, position = self._own.restore() if self._own else (0, Position())
        batches = self._engine.agree_on_step(position.batches)
        return self._engine.agree_on_step(step), dataclasses.replace(position, batches=batches)

    def save(self, step: int, position: Position) -> str:
        return self._own.save(step, position) if self._own else ""

    def beat(self, step: int, now: float) -> None:
        if self._own:
            self._own.beat(step, now)

    def mark_done(self, step: int) -> None:
        if self._own:
            self._own.mark_done(step)

    def mark_failed(self, error: BaseException) -> None:
        if self._own:
            self._own.mark_failed(error)
