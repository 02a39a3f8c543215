"""tf.contrib.learn.Experiment: an estimator with its data, and the ways to run it on a cluster."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.compat.tf1 import search
from phalanx.compat.tf1.contrib.learn.export_strategy import ExportStrategy
from phalanx.compat.tf1.contrib.learn.models import Estimator as LearnEstimator
from phalanx.compat.tf1.estimator.estimator import Estimator
from phalanx.compat.tf1.estimator.run_config import TaskType
from phalanx.compat.tf1.estimator.specs import EvalSpec
from phalanx.compat.tf1.estimator.training import (
    CheckpointEvaluation,
    EvaluationListener,
    finish_task,
    train_as_task,
    watch_checkpoints,
)
from phalanx.compat.tf1.session import serve_until_end

LOG = logging.getLogger("phalanx")

_TEST_STEPS = 1
_STEPS_PER_DELAY = 8000


class Experiment:
    """An estimator with its data, and the ways to train and evaluate it.

    Args:
        estimator: A `tf.estimator.Estimator` or `tf.contrib.learn.Estimator`.
        train_input_fn: The data of training.
        eval_input_fn: The data of evaluation.
        eval_metrics: `MetricSpec`s by name, for a `tf.contrib.learn.Estimator`.
        train_steps: The global step at which training ends; None trains until the data ends.
        eval_steps: The number of batches of an evaluation; None evaluates until the data ends.
        train_monitors: Hooks of training.
        eval_hooks: Hooks of evaluation.
        eval_delay_secs: How long `evaluate` and `continuous_eval` wait at first.
        continuous_eval_throttle_secs: The shortest time between two continuous evaluations.
        min_eval_frequency: `train_and_evaluate` evaluates a new checkpoint if so many steps have
            passed; None and 0 evaluate at the end only.
        delay_workers_by_global_step: Whether a worker waits for steps of the others at first.
        export_strategies: An `ExportStrategy`, or several, that export after evaluations.
        train_steps_per_iteration: The steps of a round in `continuous_train_and_eval`.
        checkpoint_and_export: Whether `train_and_evaluate` exports whenever it evaluates.
        saving_listeners: `tf.train.CheckpointSaverListener`s.
        local_eval_frequency: The older name of min_eval_frequency.
    """

    def __init__(
        self,
        estimator: Estimator,
        train_input_fn: Callable[..., Any],
        eval_input_fn: Callable[..., Any],
        eval_metrics: Mapping[str, Any] | None = None,
        train_steps: int | None = None,
        eval_steps: int | None = 100,
        train_monitors: Sequence[Any] | None = None,
        eval_hooks: Sequence[Any] | None = None,
        eval_delay_secs: float = 120,
        continuous_eval_throttle_secs: float = 60,
        min_eval_frequency: int | None = 1,
        delay_workers_by_global_step: bool = False,
        export_strategies: Any = None,
        train_steps_per_iteration: int | None = None,
        checkpoint_and_export: bool = False,
        saving_listeners: Sequence[Any] | None = None,
        local_eval_frequency: int | None = None,
    ) -> None:
        if not isinstance(estimator, Estimator):
            raise ValueError(
                f"Experiment: the estimator is a {type(estimator).__name__}: it must be a "
                "tf.estimator.Estimator (for Keras models, tf.keras.estimator.model_to_estimator)"
            )
        if eval_metrics and not isinstance(estimator, LearnEstimator):
            raise ValueError(
                "Experiment: eval_metrics need a tf.contrib.learn.Estimator: return "
                "eval_metric_ops from the model_fn"
            )
        self._estimator = estimator
        self._train_input_fn = train_input_fn
        self._eval_input_fn = eval_input_fn
        self._eval_metrics = eval_metrics
        self._train_steps = train_steps
        self._eval_steps = eval_steps
        self._train_monitors = list(train_monitors or ())
        self._eval_hooks = list(eval_hooks or ())
        self._eval_delay_secs = eval_delay_secs
        self._throttle_secs = continuous_eval_throttle_secs
        self._min_eval_frequency = local_eval_frequency or min_eval_frequency
        self._delays_by_step = delay_workers_by_global_step
        self._train_steps_per_iteration = train_steps_per_iteration
        self._checkpoint_and_export = checkpoint_and_export
        self._saving_listeners = list(saving_listeners or ())
        self._export_strategies: tuple[ExportStrategy, ...] = ()
        self.reset_export_strategies(export_strategies)
        if search.is_active():
            search.end(estimator, eval_input_fn, self._evaluate, self._choose_export())

    @property
    def estimator(self) -> Estimator:
        """The estimator."""
        return self._estimator

    @property
    def eval_metrics(self) -> Mapping[str, Any] | None:
        """The metrics besides those of the model_fn."""
        return self._eval_metrics

    @property
    def train_steps(self) -> int | None:
        """The global step at which training ends."""
        return self._train_steps

    @property
    def eval_steps(self) -> int | None:
        """The number of batches of an evaluation."""
        return self._eval_steps

    def reset_export_strategies(self, new_export_strategies: Any = None) -> Any:
        """Set other export strategies, and return the earlier ones."""
        earlier = self._export_strategies
        given = new_export_strategies
        listed = (given,) if isinstance(given, ExportStrategy) else tuple(given or ())
        for each in listed:
            if not hasattr(each, "export") or not hasattr(each, "name"):
                raise TypeError(f"Experiment: {each!r} is not a tf.contrib.learn.ExportStrategy")
        self._export_strategies = listed
        return earlier

    def _choose_export(self) -> search.Export | None:
        for each in self._export_strategies:
            return lambda base, path: each.export(self._estimator, base, path)
        return None

    def extend_train_hooks(self, additional_hooks: Sequence[Any]) -> None:
        """Add hooks of training."""
        self._train_monitors.extend(additional_hooks)

    def train(self, delay_secs: float | None = None) -> Estimator:
        """Train as the task of this process.

        Args:
            delay_secs: How long to wait at first; by default workers start at once.

        Returns:
            The estimator.
        """
        if delay_secs:
            time.sleep(delay_secs)
        self._train()
        finish_task(self._estimator)
        return self._estimator

    def _train(self, listeners: Sequence[Any] = (), steps: int | None = None) -> None:
        config = self._estimator.config
        delays = []
        if self._delays_by_step and config.task_id > 0:
            start = int(_STEPS_PER_DELAY * config.task_id)
            delays = [tf.train.GlobalStepWaiterHook(start)]

        def train(hooks: list[Any]) -> object:
            return self._estimator.train(
                self._train_input_fn,
                hooks=[*self._train_monitors, *delays, *hooks],
                max_steps=steps or self._train_steps,
                saving_listeners=[*self._saving_listeners, *listeners],
            )

        train_as_task(self._estimator, train)

    def evaluate(
        self, delay_secs: float | None = None, name: str | None = None
    ) -> dict[str, Any] | None:
        """Evaluate the latest checkpoint.

        Args:
            delay_secs: How long to wait at first; by default `eval_delay_secs`.
            name: Distinguishes several evaluations.

        Returns:
            The metrics by name.
        """
        time.sleep(self._eval_delay_secs if delay_secs is None else delay_secs)
        return self._evaluate(name=name)

    def _evaluate(
        self,
        path: str | None = None,
        name: str | None = None,
        input_fn: Callable[..., Any] | None = None,
        steps: int | None = None,
    ) -> dict[str, Any]:
        metrics = {"metrics": self._eval_metrics} if self._eval_metrics else {}
        return self._estimator.evaluate(
            input_fn or self._eval_input_fn,
            steps=steps or self._eval_steps,
            hooks=list(self._eval_hooks),
            checkpoint_path=path,
            name=name,
            **metrics,
        )

    def train_and_evaluate(self) -> tuple[dict[str, Any], list[Any]]:
        """Train, evaluate new checkpoints in between, then evaluate and export.

        Returns:
            The metrics of the last evaluation, and the results of the exports.
        """
        evaluation = _ExperimentEvaluation(self)
        listeners = []
        if self._min_eval_frequency:
            listeners = [EvaluationListener(evaluation, min_steps=self._min_eval_frequency)]
        self._train(listeners)
        finish_task(self._estimator)
        # The listener may have evaluated the last checkpoint.
        if evaluation.has_new_checkpoint():
            evaluation.run()
        metrics = self._evaluate() if evaluation.metrics is None else evaluation.metrics
        return metrics, self._export(self._estimator.latest_checkpoint())

    def local_run(self) -> tuple[dict[str, Any], list[Any]]:
        """Do the same as `train_and_evaluate`."""
        return self.train_and_evaluate()

    def continuous_eval(
        self,
        delay_secs: float | None = None,
        throttle_delay_secs: float | None = None,
        evaluate_checkpoint_only_once: bool = True,
        continuous_eval_predicate_fn: Callable[[Any], bool] | None = None,
        name: str = "continuous",
    ) -> None:
        """Evaluate each new checkpoint, until the run that another task trains is over.

        Args:
            delay_secs: How long to wait at first; by default `eval_delay_secs`.
            throttle_delay_secs: The shortest time between two evaluations.
            evaluate_checkpoint_only_once: Not used: a checkpoint is evaluated once.
            continuous_eval_predicate_fn: Ends the evaluation when it returns False for the last
                metrics.
            name: Distinguishes several evaluations.
        """
        self._watch(delay_secs, throttle_delay_secs, continuous_eval_predicate_fn, name)

    def continuous_eval_on_train_data(
        self,
        delay_secs: float | None = None,
        throttle_delay_secs: float | None = None,
        continuous_eval_predicate_fn: Callable[[Any], bool] | None = None,
        name: str = "continuous_on_train_data",
    ) -> None:
        """Do the same as `continuous_eval`, with the data of training.

        Args:
            delay_secs: How long to wait at first; by default `eval_delay_secs`.
            throttle_delay_secs: The shortest time between two evaluations.
            continuous_eval_predicate_fn: Ends the evaluation when it returns False.
            name: Distinguishes several evaluations.
        """
        predicate, data = continuous_eval_predicate_fn, self._train_input_fn
        self._watch(delay_secs, throttle_delay_secs, predicate, name, data)

    def _watch(
        self,
        delay_secs: float | None,
        throttle_secs: float | None,
        predicate: Callable[[Any], bool] | None,
        name: str,
        input_fn: Callable[..., Any] | None = None,
    ) -> None:
        spec = EvalSpec(
            self._eval_input_fn,
            start_delay_secs=self._eval_delay_secs if delay_secs is None else delay_secs,
            throttle_secs=self._throttle_secs if throttle_secs is None else throttle_secs,
        )
        evaluation = _ExperimentEvaluation(self, name, input_fn)
        watch_checkpoints(evaluation, self._train_steps, spec, predicate)

    def continuous_train_and_eval(
        self, continuous_eval_predicate_fn: Callable[[Any], bool] | None = None
    ) -> tuple[dict[str, Any] | None, list[Any]]:
        """Train a round, evaluate, and so on.

        Args:
            continuous_eval_predicate_fn: Ends training when it returns False for the last metrics.

        Returns:
            The metrics of the last evaluation, and the results of the exports.
        """
        step, metrics = 0, None
        size = self._train_steps_per_iteration or max(1, (self._train_steps or 1000) // 10)
        goal = self._train_steps
        while (goal is None or step < goal) and (
            continuous_eval_predicate_fn is None or continuous_eval_predicate_fn(metrics)
        ):
            self._train(steps=step + size if goal is None else min(goal, step + size))
            metrics = self._evaluate()
            step = int(metrics["global_step"])
        finish_task(self._estimator)
        return metrics, self._export(self._estimator.latest_checkpoint())

    def run_std_server(self) -> None:
        """Serve as a parameter server until training is over."""
        config = self._estimator.config
        if config.task_type != TaskType.PS:
            raise ValueError(
                f"run_std_server was called on a task {config.task_type!r}: it is for a ps"
            )
        serve_until_end(config)

    def test(self) -> tuple[dict[str, Any], list[Any]]:
        """Train for one step, evaluate one batch and export, to see whether everything works.

        Returns:
            The metrics, and the results of the exports.
        """
        self._estimator.train(self._train_input_fn, hooks=self._train_monitors, steps=_TEST_STEPS)
        metrics = self._evaluate(name="one_pass", steps=_TEST_STEPS)
        return metrics, self._export(self._estimator.latest_checkpoint())

    def _export(self, path: str | None) -> list[Any]:
        base = f"{self._estimator.model_dir}/export"
        return [
            each.export(self._estimator, f"{base}/{each.name}", checkpoint_path=path)
            for each in self._export_strategies
        ]


class _ExperimentEvaluation(CheckpointEvaluation):
    """Evaluates the checkpoints of an experiment, and exports them if the experiment asks for it.

    Args:
        experiment: The experiment.
        name: Distinguishes a continuous evaluation.
        input_fn: The data, if it is not that of evaluation.
    """

    def __init__(
        self,
        experiment: Experiment,
        name: str | None = None,
        input_fn: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(experiment.estimator)
        self._experiment = experiment
        self._name = name
        self._input_fn = input_fn
        self._exported: str | None = None

    def _evaluate(self, path: str) -> dict[str, Any]:
        return self._experiment._evaluate(path, self._name, self._input_fn)

    def _export(self, path: str, *, is_final: bool) -> None:
        asks = self._experiment._checkpoint_and_export or self._name
        if asks and path != self._exported:
            self._experiment._export(path)
            self._exported = path
