"""tf.estimator.Estimator: trains, evaluates, predicts and exports the graphs of a model_fn."""

import copy
import logging
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Self

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1 import search
from phalanx.compat.tf1.estimator import graph_hooks
from phalanx.compat.tf1.estimator.checks import (
    check_hooks,
    check_model_fn,
    check_steps,
    check_strategies,
)
from phalanx.compat.tf1.estimator.export import PredictOutput, make_signatures
from phalanx.compat.tf1.estimator.inputs import call_input_fn
from phalanx.compat.tf1.estimator.predictions import choose_predictions, split_batch
from phalanx.compat.tf1.estimator.replicas import (
    Replicas,
    build_on_replicas,
    provide_devices,
    strategy_of,
)
from phalanx.compat.tf1.estimator.run_config import (
    RunConfig,
    TaskType,
    list_addresses,
    make_device_fn,
)
from phalanx.compat.tf1.estimator.saved_models import write_saved_model
from phalanx.compat.tf1.estimator.specs import (
    EstimatorSpec,
    ModeKeys,
    WarmStartSettings,
    find_warm_start,
    make_warm_start,
)
from phalanx.compat.tf1.session import make_session_creator, open_session
from phalanx.train.model_dir.intact import find_intact
from phalanx.train.model_dir.layout import EVALUATION_LOG
from phalanx.train.model_dir.lease import hold_lease
from phalanx.train.model_dir.metrics_log import MetricsEntry
from phalanx.train.model_dir.summaries import append_entry

LOG = logging.getLogger("tensorflow")
# The hook that counts steps reads the step while it is being increased, and warns for no reason.
LOG.addFilter(lambda record: "It seems that global step" not in str(record.msg))


class Estimator:
    """Trains, evaluates, predicts and exports the model that a model_fn builds.

    Args:
        model_fn: Builds the graph and returns an `EstimatorSpec`. It takes `features` and, if it
            names them, `labels`, `mode`, `params` and `config`.
        model_dir: The directory of checkpoints and summaries; by default that of the config, or a
            temporary one.
        config: A `RunConfig`.
        params: Hyperparameters for the model_fn.
        warm_start_from: A checkpoint, or `WarmStartSettings`, that initializes the variables.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | os.PathLike[str] | None = None,
        config: RunConfig | None = None,
        params: Any = None,
        warm_start_from: str | WarmStartSettings | None = None,
    ) -> None:
        if config is not None and not isinstance(config, RunConfig):
            raise TypeError(f"Estimator: config is {config!r}: it must be a tf.estimator.RunConfig")
        config = config or RunConfig()
        if model_dir is not None and config.model_dir not in (None, os.fspath(model_dir)):
            raise ValueError(
                f"Estimator: model_dir is {model_dir}, but that of the config is "
                f"{config.model_dir}: set one of them"
            )
        directory = os.fspath(model_dir) if model_dir is not None else config.model_dir
        if directory is None:
            directory = tempfile.mkdtemp()
            LOG.warning("Using the temporary directory %s as model_dir", directory)
        check_strategies(config)
        self._config = config.replace(model_dir=directory)
        self._model_dir: str = directory
        self._params = copy.deepcopy(params if params is not None else {})
        self._model_fn = model_fn
        self._takes = check_model_fn(model_fn, params)
        self._warm_start = make_warm_start(warm_start_from)

    @property
    def model_dir(self) -> str:
        """The directory of checkpoints and summaries."""
        return self._model_dir

    @property
    def config(self) -> RunConfig:
        """A copy of the settings."""
        return copy.copy(self._config)

    def move(self, model_dir: str) -> None:
        """Use the checkpoints of another directory."""
        self._config = self._config.replace(model_dir=model_dir)
        self._model_dir = model_dir

    @property
    def params(self) -> Any:
        """A copy of the hyperparameters."""
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., EstimatorSpec]:
        """The model_fn, with `params` bound to this estimator's."""

        def call(features: Any, labels: Any, mode: str, config: RunConfig) -> EstimatorSpec:
            return self._call_model_fn(features, labels, mode, config)

        return call

    def eval_dir(self, name: str | None = None) -> str:
        """Return the directory of the summaries of an evaluation."""
        return os.path.join(self._model_dir, f"eval_{name}" if name else "eval")  # noqa: PTH118

    def latest_checkpoint(self) -> str | None:
        """Return the path of the latest checkpoint."""
        path = find_intact(self._model_dir)
        # Programs may save under other names than ours.
        found: str | None = path or tf.train.latest_checkpoint(self._model_dir)
        return found

    def get_variable_names(self) -> list[str]:
        """Return the names of the variables in the latest checkpoint."""
        return [name for name, _ in tf.train.list_variables(self._latest())]

    def get_variable_value(self, name: str) -> Any:
        """Return the value of a variable in the latest checkpoint."""
        return tf.train.load_variable(self._latest(), name)

    def _latest(self) -> str:
        return self.latest_checkpoint() or self._model_dir

    def train(
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> Self:
        """Train the model; continue from the latest checkpoint of model_dir.

        Args:
            input_fn: Returns (features, labels), or a dataset of such pairs.
            hooks: Hooks besides those of the EstimatorSpec.
            steps: Train for so many steps.
            max_steps: Train up to this global step. Without both, train until the data ends.
            saving_listeners: `tf.train.CheckpointSaverListener`s.

        Returns:
            This estimator.
        """
        if search.is_active():
            search.note(self, input_fn=input_fn)
            return self
        config = self._config
        if config.task_type in (TaskType.PS, TaskType.EVALUATOR):
            raise ValueError(
                f"train was called on a task {config.task_type!r} of TF_CONFIG, which does not "
                "train: call tf.estimator.train_and_evaluate, or learn_runner.run"
            )
        check_steps(steps=steps, max_steps=max_steps)
        check_hooks(hooks)
        if steps is not None and max_steps is not None:
            raise ValueError("train: both steps and max_steps are set: set one of them")
        if max_steps is not None and self.saved_step() >= max_steps:
            LOG.info("Skipping training: the latest checkpoint is at step %s", self.saved_step())
            return self
        lease = hold_lease(self._model_dir if config.is_chief else None, list_addresses(config))
        strategy = strategy_of(config, ModeKeys.TRAIN)
        with lease, self._graph(strategy, make_device_fn(config)) as graph:
            loss = self._train(graph, strategy, input_fn, hooks, steps, max_steps, saving_listeners)
        LOG.info("Loss for final step: %s.", loss)
        return self

    def _train(
        self,
        graph: Any,
        strategy: Any,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None,
        steps: int | None,
        max_steps: int | None,
        saving_listeners: Sequence[Any] | None,
    ) -> Any:
        config = self._config
        tf.train.get_or_create_global_step(graph)
        input_hooks, spec, *_ = self._build(strategy, input_fn, ModeKeys.TRAIN)
        self._start_warm(self.latest_checkpoint())
        if steps is not None or max_steps is not None:
            hooks = [*(hooks or ()), tf.train.StopAtStepHook(num_steps=steps, last_step=max_steps)]
        worker_hooks, chief_hooks = graph_hooks.make_training_hooks(
            spec, config, self._model_dir, [*input_hooks, *(hooks or ())], saving_listeners
        )
        creator = make_session_creator(
            spec.scaffold,
            is_chief=config.is_chief,
            master=config.master,
            config=provide_devices(config.session_config, strategy),
            find_checkpoint=self.latest_checkpoint,
            max_wait_secs=config.session_creation_timeout_secs,
        )
        every = [*worker_hooks, *(chief_hooks if config.is_chief else ())]
        loss = None
        with open_session(creator, every) as session:
            while not session.should_stop():
                _, loss = session.run([spec.train_op, spec.loss])
        return loss

    def evaluate(
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate a checkpoint.

        Args:
            input_fn: Returns (features, labels), or a dataset of such pairs.
            steps: The number of batches; None evaluates until the data ends.
            hooks: Hooks besides those of the EstimatorSpec.
            checkpoint_path: The checkpoint; by default the latest.
            name: Distinguishes several evaluations: summaries go to `eval_NAME`.

        Returns:
            The metrics by name, with `loss` and `global_step`.
        """
        check_steps(steps=steps)
        check_hooks(hooks)
        if search.is_active():
            search.note(
                self,
                input_fn=input_fn,
                evaluate=lambda path: Estimator.evaluate(self, input_fn, steps, hooks, path),
            )
            return defaultdict(float)
        path = checkpoint_path or self.latest_checkpoint()
        if path is None:
            LOG.warning("%s has no checkpoint: evaluating the initial model", self._model_dir)
        strategy = strategy_of(self._config, ModeKeys.EVAL)
        with self._graph(strategy) as graph:
            tf.train.get_or_create_global_step(graph)
            input_hooks, spec, updates, queues = self._build(strategy, input_fn, ModeKeys.EVAL)
            self._start_warm(path)
            update, values = graph_hooks.make_metrics(spec, graph)
            final = tf.train.FinalOpsHook(values)
            extra = [*input_hooks, *(hooks or ()), *spec.evaluation_hooks]
            extra += [graph_hooks.EvaluationSummaryHook(self.eval_dir(name))]
            extra += [graph_hooks.StopAfterRunsHook(steps)] if steps is not None else []
            LOG.info("Starting evaluation of %s", path)
            creator = self._make_reader(
                spec.scaffold, path, self._config.evaluation_master, strategy
            )
            with tf.train.MonitoredSession(creator, [*extra, final]) as session:
                while not session.should_stop():
                    if queues is None:
                        session.run(update)
                    elif not queues.run(session, update, updates):
                        break
        results = dict(final.final_ops_values)
        graph_hooks.write_results(self.eval_dir(name), results, path)
        if name is None:
            entry = MetricsEntry(int(results["global_step"]), graph_hooks.list_numbers(results))
            append_entry(self._model_dir, EVALUATION_LOG, entry)
        return results

    def predict(
        self,
        input_fn: Callable[..., Any],
        predict_keys: str | Sequence[str] | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Yield the predictions for each example.

        Args:
            input_fn: Returns features, or a dataset of features; labels are dropped.
            predict_keys: The predictions to yield, by name; by default all.
            hooks: Hooks besides those of the EstimatorSpec.
            checkpoint_path: The checkpoint; by default the latest.
            yield_single_examples: False yields whole batches.

        Yields:
            A dict of arrays, or an array if the predictions are a tensor.
        """
        check_hooks(hooks)
        if search.is_active():
            search.note(self)
            return
        path = checkpoint_path or self.latest_checkpoint()
        if path is None:
            LOG.warning("%s has no checkpoint: predicting with the initial model", self._model_dir)
        with self._graph() as graph:
            tf.train.get_or_create_global_step(graph)
            inputs = call_input_fn(
                input_fn, ModeKeys.PREDICT, self.params, self._config, has_labels=False
            )
            spec = self._call_model_fn(inputs.features, None, ModeKeys.PREDICT, self._config)
            self._start_warm(path)
            predictions = choose_predictions(spec.predictions, predict_keys)
            every = [*inputs.hooks, *(hooks or ()), *spec.prediction_hooks]
            creator = self._make_reader(spec.scaffold, path, "")
            with tf.train.MonitoredSession(creator, every) as session:
                while not session.should_stop():
                    batch = session.run(predictions)
                    yield from [batch] if not yield_single_examples else split_batch(batch)

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        strip_default_attrs: bool = True,
    ) -> bytes:
        """Write a SavedModel into a new directory, which is named for the time.

        Args:
            export_dir_base: The directory of all exports of the model.
            serving_input_receiver_fn: Returns a `ServingInputReceiver`.
            assets_extra: Files to copy into `assets.extra`, by their names there.
            as_text: Whether to write the graph as text.
            checkpoint_path: The checkpoint; by default the latest.
            strip_default_attrs: Whether to leave out attributes with default values.

        Returns:
            The path of the new directory.
        """
        if search.is_active():
            search.note(
                self,
                export=lambda base, path: self.export_saved_model(
                    base, serving_input_receiver_fn, assets_extra, checkpoint_path=path
                ),
            )
            return os.fsencode(export_dir_base)
        path = checkpoint_path or self.latest_checkpoint()
        if path is None and self._warm_start is not None:
            path = find_warm_start(self._warm_start)
        if path is None:
            raise ValueError(
                f"{self._model_dir} has no checkpoint to export: train the model first"
            )
        with self._graph() as graph:
            tf.train.get_or_create_global_step(graph)
            receiver = serving_input_receiver_fn()
            spec = self._call_model_fn(receiver.features, None, ModeKeys.PREDICT, self._config)
            default = {"serving_default": PredictOutput(spec.predictions)}
            signatures = make_signatures(receiver, spec.export_outputs or default)
            with tf.Session(config=self._config.session_config) as session:
                (spec.scaffold.saver or tf.train.Saver(sharded=True)).restore(session, path)
                target = write_saved_model(
                    session,
                    os.fspath(export_dir_base),
                    signatures,
                    spec.scaffold.local_init_op,
                    assets_extra or {},
                    as_text=as_text,
                    strip_default_attrs=strip_default_attrs,
                )
        LOG.info("SavedModel written to: %s", target)
        return target.encode()

    export_savedmodel = export_saved_model

    def _start_warm(self, checkpoint: str | None) -> None:
        """Let the variables of the graph start with a warm start, if there is no checkpoint."""
        if self._warm_start is not None and checkpoint is None:
            path = find_warm_start(self._warm_start)
            tf.train.warm_start(*self._warm_start._replace(ckpt_to_initialize_from=path))

    def saved_step(self) -> int:
        """Return the global step of the latest checkpoint; 0 without one."""
        path = self.latest_checkpoint()
        if path is None:
            return 0
        try:
            return int(tf.train.load_variable(path, tf.GraphKeys.GLOBAL_STEP))
        except (tf.errors.NotFoundError, KeyError):
            return 0

    @contextmanager
    def _graph(
        self, strategy: Any = None, device_fn: Callable[[Any], str] | None = None
    ) -> Iterator[Any]:
        with tf.Graph().as_default() as graph, graph.device(device_fn):
            if self._config.tf_random_seed is not None:
                tf.set_random_seed(self._config.tf_random_seed)
            # The scope belongs to the graph in which it is made.
            with strategy.scope() if strategy is not None else nullcontext():
                yield graph

    def _build(self, strategy: Any, input_fn: Callable[..., Any], mode: str) -> Replicas:
        """Build the graph of a mode, on one replica or several."""
        config = self._config
        if strategy is not None:
            return build_on_replicas(
                strategy,
                input_fn,
                {"mode": mode, "params": self.params, "config": config},
                lambda features, labels: self._call_model_fn(features, labels, mode, config),
            )
        inputs = call_input_fn(input_fn, mode, self.params, config)
        spec = self._call_model_fn(inputs.features, inputs.labels, mode, config)
        return Replicas(inputs.hooks, spec)

    def _make_reader(
        self, scaffold: Any, path: str | None, master: str, strategy: Any = None
    ) -> Any:
        """Return a session creator for this process, which needs no parameter server."""
        config = provide_devices(self._config.session_config, strategy)
        if not master:
            del config.device_filters[:]
        return tf.train.ChiefSessionCreator(
            scaffold, master=master, config=config, checkpoint_filename_with_path=path
        )

    def _call_model_fn(
        self, features: Any, labels: Any, mode: str, config: RunConfig
    ) -> EstimatorSpec:
        known = {"mode": mode, "params": self.params, "config": config}
        passed = {name: value for name, value in known.items() if name in self._takes}
        if "labels" in self._takes:
            passed["labels"] = labels
        elif labels is not None:
            raise ValueError("the input_fn returns labels, but the model_fn takes no labels")
        LOG.info("Calling model_fn.")
        spec = self._model_fn(features=features, **passed)
        if not isinstance(spec, EstimatorSpec):
            raise ValueError(
                f"the model_fn returned a {type(spec).__name__}: return an EstimatorSpec"
            )
        return spec
