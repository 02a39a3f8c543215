"""What this process does in a run, according to its role.

An evaluator evaluates checkpoints. Without parameter servers, every task trains synchronously, and
the chief leads. With parameter servers, the chief trains on them, and all other tasks serve it.
"""

import gc
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from phalanx.cluster import Role
from phalanx.cluster.job_environment import read_run_id, will_be_restarted
from phalanx.errors import Interrupted
from phalanx.metrics_endpoint import check_metrics_library
from phalanx.train.config import RunConfig
from phalanx.train.context import Context
from phalanx.train.engines.all_reduce import AllReduceEngine
from phalanx.train.engines.base import TrainingEngine
from phalanx.train.engines.communication import Communication
from phalanx.train.engines.ps_async import AsyncPSEngine
from phalanx.train.engines.ps_sync import SyncPSEngine
from phalanx.train.experiment import Experiment, is_written
from phalanx.train.hooks import CallbackHook, Every, ExamplesPerSecondHook, Hook
from phalanx.train.hooks.task_file import report_steps
from phalanx.train.loop.base import SessionCheckpoints
from phalanx.train.loop.checkpoint_evaluator import (
    WatchOptions,
    evaluate_checkpoints,
    open_evaluator,
    process_start_time,
)
from phalanx.train.loop.default_hooks import default_hooks
from phalanx.train.loop.evaluation import evaluate
from phalanx.train.loop.session import Session
from phalanx.train.model_dir.checkpoint import Checkpoints, NoCheckpoints
from phalanx.train.model_dir.lease import hold_lease
from phalanx.train.model_dir.summaries import Summaries
from phalanx.train.model_dir.task_files import report_task
from phalanx.train.runtime.failures import propagate_failures
from phalanx.train.runtime.joining import join_trainers, open_channel
from phalanx.train.runtime.metrics_address import find_metrics_address
from phalanx.train.runtime.peers import run_server
from phalanx.train.runtime.ps_cluster import ParameterServerCluster
from phalanx.train.runtime.signals import StopRequest, catch_sigterm
from phalanx.train.runtime.task_data import TaskData, make_eval_data, make_train_data
from phalanx.train.runtime.topology import Strategy, Topology
from phalanx.train.runtime.worker_data import can_be_sent, is_served, serve_worker_data
from phalanx.train.setting_checks import (
    check_asynchronous,
    check_callbacks,
    check_fits_ps,
    check_growing_tables,
    check_in_place,
    check_recurrent_layers,
)
from phalanx.train.step.step_function import StepFunction
from phalanx.train.types import Callback, Dataset, Model
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.host_variables import HostVariables

LOG = logging.getLogger("phalanx")


@dataclass(frozen=True)
class Result:
    """The result of a run. Tasks other than the chief and the evaluator return an empty one.

    Attributes:
        step: The last step.
        metrics: The loss and the metrics of the last evaluation.
        examples_per_second: The average speed of the training.
        model_dir: The directory of the run.
        checkpoint: The path of the last checkpoint.
        model: The trained model.
        history: The `keras.callbacks.History` of a run with callbacks.
    """

    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    examples_per_second: float = 0.0
    model_dir: str = ""
    checkpoint: str = ""
    model: Model = None
    history: Callback | None = None


@dataclass(frozen=True)
class TaskRun:
    """The part of this process in a run: one method for each role.

    Attributes:
        experiment: What to train.
        config: How to train. Without a model_dir, the run keeps nothing on disk.
        topology: The part of this process.
        hooks: The hooks to call beside the default ones.
        steps_per_epoch: After how many steps an epoch ends. By default, at the end of the data.
        steps_per_pass: How many steps a pass over the data has. By default, as many as its batches
            make.
        initial_epoch: The number of the first epoch, from 0.
        arrive: Tells the chief that this task is ready, if other calls may follow in the program.
            Parameter servers and their workers then serve until the chief's program ends.
        data_name: Tells the worker data of this run from that of earlier ones in the program.
        trains: Whether the run may train. If not, it evaluates, and traces no training step.
    """

    experiment: Experiment
    config: RunConfig
    topology: Topology
    hooks: Sequence[Hook]
    steps_per_epoch: int | None = None
    steps_per_pass: int | None = None
    initial_epoch: int = 0
    arrive: Callable[[], None] | None = None
    data_name: str = "train"
    trains: bool = True

    def run_role(self) -> Result:
        is_evaluator = self.topology.task.role is Role.EVALUATOR
        leads = self.topology.is_chief and not is_evaluator
        addresses = self.topology.cluster.addresses.values()
        if self._serves_metrics():
            check_metrics_library()
        # The lease comes first: a run that is refused must not report in the place of another.
        with (
            hold_lease(self.config.model_dir if leads else None, addresses),
            report_task(self.config.model_dir, self.topology.task, leads),
        ):
            if is_evaluator:
                return self._run_evaluator()
            if not self.topology.strategy.has_ps:
                return self._run_all_reduce_trainer()
            return self._run_ps_chief() if leads else self._run_ps_server_or_worker()

    def _run_evaluator(self) -> Result:
        """Evaluate each checkpoint that the chief writes."""
        directory = str(self.config.model_dir)
        options = WatchOptions(
            wait_seconds=self.config.wait_seconds,
            since=process_start_time(),
            chief_restarts=will_be_restarted(),
            job=read_run_id(),
        )
        with (
            open_evaluator(self.experiment, self.config) as (evaluate_checkpoint, model),
            catch_sigterm() as stop,
        ):
            step, metrics = evaluate_checkpoints(directory, evaluate_checkpoint, options, stop)
            if stop():
                raise Interrupted(
                    f"the evaluator received SIGTERM: step {step} is the last that it has evaluated"
                )
        return Result(step, metrics, model_dir=directory, model=model)

    def _run_all_reduce_trainer(self) -> Result:
        """Train in one process, or synchronously with the other workers; the chief leads."""
        config, topology = self.config, self.topology
        with propagate_failures(topology, open_channel(topology)):
            if self.arrive is not None and not topology.is_chief:
                self.arrive()
            tf_strategy, devices = join_trainers(topology, config)
            # TensorFlow installs a SIGTERM handler with the strategy, so ours comes after it.
            with catch_sigterm() as stop:
                context = topology.context_for(config, topology.task, len(devices))
                step_function, host_variables, data = self.build(context)
                engine = AllReduceEngine(
                    step_function,
                    host_variables,
                    tf_strategy,
                    context,
                    data,
                    devices=devices,
                    on_host=config.variables == "cpu",
                    clipping=make_clipping(step_function, config),
                    communication=Communication.of_config(config, context.global_batch_size),
                    is_chief=topology.is_chief,
                    task=str(topology.task),
                    accumulate=config.accumulate,
                    xla=config.xla,
                    steps_per_call=config.steps_per_call,
                    eval_steps=config.eval_steps,
                    is_asked_to_stop=stop,
                )
                if topology.is_chief:
                    return self._train(step_function, host_variables, engine, data, stop, context)
                try:
                    engine.begin(0, 0)
                    engine.follow(report_steps())
                    engine.pull()
                finally:
                    engine.close_data()
                step_function.seeds.advance(engine.next_step)
                if engine.is_interrupted():
                    raise Interrupted("the run received SIGTERM; the chief has saved: run it again")
                return Result()

    def _run_ps_chief(self) -> Result:
        """Connect to the parameter servers and workers, and train on them."""
        channel = open_channel(self.topology)
        with propagate_failures(self.topology, channel, releases=self.arrive is None):
            ps_cluster = ParameterServerCluster(
                self.topology, self.config, self.experiment, channel
            )
            ps_cluster.connect()
            with catch_sigterm() as stop:
                result = self._train_on_ps(ps_cluster, stop)
            # TensorFlow must release its objects on the servers while these still run.
            gc.collect()
            return result

    def _run_ps_server_or_worker(self) -> Result:
        """Execute what the chief sends, until the chief is done."""
        is_trainer = self.topology.task in self.topology.trainers
        run_server(
            self.topology,
            self.config,
            open_channel(self.topology),
            self._serve_worker_data if is_trainer else None,
            self.arrive if is_trainer or self.arrive is None else lambda: None,
        )
        return Result()

    def _serve_worker_data(self) -> None:
        """Build this worker's data in its own process, if the chief cannot send it as a graph."""
        context = self.topology.context_for(self.config, self.topology.task)

        def make(passes: int = 0) -> Dataset:
            return make_train_data(self.experiment, replace(context, epoch=passes))

        if not can_be_sent(data := make(), make):
            serve_worker_data(data, make, self.data_name)

    def _train_on_ps(self, ps_cluster: ParameterServerCluster, stop: StopRequest) -> Result:
        context = ps_cluster.contexts[0]
        step_function, host_variables, data = self.build(context)
        check_fits_ps(self.config, step_function, host_variables)
        element_spec, clipping = data.train.element_spec, make_clipping(step_function, self.config)
        if not can_be_sent(data.train, partial(make_train_data, self.experiment, context)):
            ps_cluster.worker_data = element_spec
            ps_cluster.worker_data_name = self.data_name
        ps_cluster.is_data_served = context.data_service is not None and is_served(data.train)
        is_async = self.topology.strategy is Strategy.ASYNC_PS
        if is_async:
            check_asynchronous(step_function, clipping)
        engine_class = AsyncPSEngine if is_async else SyncPSEngine
        engine = engine_class(
            ps_cluster,
            step_function,
            host_variables,
            element_spec,
            clipping,
            pauses=any(hook.needs_epochs for hook in self.hooks),
        )
        result = self._train(step_function, host_variables, engine, data, stop, context)
        reason = None
        if self.arrive is None:
            reason = f"it was on the parameter servers; load {result.checkpoint or 'a checkpoint'}"
        for variable in host_variables.described():
            variable.release(reason)
        for index in host_variables.indexes():
            index.release()
        return result

    def _serves_metrics(self) -> bool:
        """Whether this task serves the metrics of the run."""
        leads = self.topology.is_chief and self.topology.task.role is not Role.EVALUATOR
        return leads and find_metrics_address(self.config, os.environ) is not None

    def build_model(self) -> None:
        """Build the model and the optimizer in a task that does not train them itself."""
        self.build(self.topology.context_for(self.config, self.topology.task))

    def build(self, context: Context) -> tuple[StepFunction, HostVariables, TaskData]:
        """Build the model, its variables and its data."""
        experiment = self.experiment
        step_function = StepFunction(experiment, context)
        step_function.report.has_norm = any(hook.needs_gradient_norm for hook in self.hooks)
        train_data = make_train_data(experiment, context)
        make_evaluation = partial(make_eval_data, experiment, context)
        eval_data = None
        is_own = is_written(experiment, "train_step") or is_written(experiment, "eval_step")
        if is_own or step_function.has_model_steps or not self.trains:
            eval_data = make_evaluation()
        train_spec = train_data.element_spec if self.trains else None
        step_function.build(train_spec, getattr(eval_data, "element_spec", None))
        check_recurrent_layers(self.config, step_function, context.num_replicas)
        check_in_place(self.config, step_function)
        host_variables = step_function.make_host_variables()
        if self.config.full_save_every is not None and self.trains:
            for variable in host_variables.described():
                variable.tracks_changes = variable.is_large
        if self.trains:
            callbacks = [c for h in self.hooks if isinstance(h, CallbackHook) for c in h.callbacks]
            check_callbacks(callbacks, host_variables)
            check_growing_tables(self.config, host_variables, self.topology.strategy.has_ps)
        data = TaskData(
            train_data,
            make_evaluation,
            lambda passes: make_train_data(experiment, replace(context, epoch=passes)),
        )
        return step_function, host_variables, data

    def _train(
        self,
        step_function: StepFunction,
        host_variables: HostVariables,
        engine: TrainingEngine,
        data: TaskData,
        stop: StopRequest,
        context: Context,
    ) -> Result:
        """Run the training loop on the chief."""
        config = self.config
        # A data service goes on by itself behind what it has given to an earlier start of the run.
        is_data_served = context.data_service is not None and is_served(data.train)
        checkpoints: SessionCheckpoints = NoCheckpoints()
        if config.model_dir is not None:
            checkpoints = Checkpoints(
                config.model_dir,
                step_function,
                host_variables,
                keep_max=config.keep_max,
                keep_every_hours=config.keep_every_hours,
                global_batch_size=context.global_batch_size,
                examples_per_update=context.examples_per_update,
                in_background=config.save_in_background,
                full_save_every=config.full_save_every,
            )
        summaries = Summaries(config.model_dir)
        speed = ExamplesPerSecondHook(Every(steps=config.log_steps))
        eval_data = data.make_evaluation()
        evaluate_step = None
        if eval_data is not None:
            batches = engine.count_evaluation_batches(eval_data)
            evaluate_step = partial(
                evaluate, step_function, engine, summaries, batches, trained=self.trains
            )
        evaluates = evaluate_step is not None and not self.topology.has_evaluator
        callback_hooks = [hook for hook in self.hooks if isinstance(hook, CallbackHook)]
        # An evaluation alone would report step 0 after the training before it.
        shown = self.topology if self.trains else None
        shares = self.topology.count_shares(config, context)
        defaults = default_hooks(config, speed, evaluates, callback_hooks, shown, shares)
        hooks = [*defaults, *self.hooks]
        session = Session(
            step_function,
            engine,
            checkpoints,
            summaries,
            sorted(hooks, key=lambda hook: not hook.needs_epochs),
            epochs=config.epochs,
            steps_per_epoch=self.steps_per_epoch,
            steps_per_pass=self.steps_per_pass or count_steps(data, context),
            initial_epoch=self.initial_epoch,
            evaluate=evaluate_step,
            resume_data=config.resume_data and not is_data_served,
            is_asked_to_stop=stop,
            save_retry_seconds=config.save_retry_seconds,
            max_rollbacks=config.max_rollbacks,
        )
        try:
            with session:
                while not session.should_stop():
                    session.advance()
        finally:
            summaries.close()
        step_function.seeds.advance(session.step)
        if self.trains:
            LOG.info("finished: %s", session.stop_reason)
        return Result(
            step=session.step,
            metrics=dict(session.evaluation),
            examples_per_second=speed.average,
            model_dir=config.model_dir or "",
            checkpoint=checkpoints.latest or "",
            model=step_function.model,
            history=callback_hooks[-1].history if callback_hooks else None,
        )


def count_steps(data: TaskData, context: Context) -> int | None:
    """Return how many steps one pass over the data has, if all shards are as long as the chief's.

    None if the length of the data is unknown.
    """
    batches = int(data.train.cardinality())
    examples = batches * context.batch_size * context.num_shards
    return -(-examples // context.examples_per_update) if batches > 0 else None


def make_clipping(step_function: StepFunction, config: RunConfig) -> Clipping:
    """Return the limits that the optimizer and the config set for gradients."""
    optimizer = step_function.optimizer
    limits = [
        optimizer.clipvalue,
        optimizer.clipnorm,
        config.clip_norm or optimizer.global_clipnorm,
    ]
    # As in Keras, a limit of 0 is none.
    return Clipping(*(limit if limit and limit > 0 else None for limit in limits))
