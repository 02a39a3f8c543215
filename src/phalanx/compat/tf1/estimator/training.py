"""tf.estimator.train_and_evaluate, in one process and as a task of a cluster."""

import logging
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import tensorflow.compat.v1 as tf

from phalanx.cluster.job_environment import has_evaluator
from phalanx.compat.tf1 import search
from phalanx.compat.tf1.estimator.estimator import Estimator
from phalanx.compat.tf1.estimator.exporters import choose_export
from phalanx.compat.tf1.estimator.run_config import TaskType
from phalanx.compat.tf1.estimator.specs import EvalSpec, TrainSpec
from phalanx.compat.tf1.session import report_end, serve_until_end, start_server
from phalanx.errors import PeerError
from phalanx.train.loop.checkpoint_evaluator import process_start_time
from phalanx.train.model_dir.status import (
    HEARTBEAT_SECONDS,
    State,
    Status,
    read_status,
    write_status,
)

LOG = logging.getLogger("phalanx")

_POLL_SECONDS = 1.0
_SILENCE_SECONDS = 600.0


def train_and_evaluate(
    estimator: Estimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any]] | None:
    """Train and evaluate: all of it in one process, or this task's part of a cluster.

    With TF_CONFIG, a chief and the workers train, and the ps serve until they have ended. An
    evaluator evaluates each new checkpoint; without one, a `master` evaluates while it trains.

    Args:
        estimator: The estimator.
        train_spec: How to train.
        eval_spec: How to evaluate and export.

    Returns:
        The metrics of the last evaluation and the results of the exporters, in a single process
        and on a master; otherwise None.
    """
    if not isinstance(estimator, Estimator):
        raise TypeError(f"train_and_evaluate: {estimator!r} is not a tf.estimator.Estimator")
    if not isinstance(train_spec, TrainSpec) or not isinstance(eval_spec, EvalSpec):
        raise TypeError("train_and_evaluate needs a tf.estimator.TrainSpec and an EvalSpec")
    if search.is_active():
        search.end(
            estimator,
            eval_spec.input_fn,
            lambda path: estimator.evaluate(
                eval_spec.input_fn, eval_spec.steps, list(eval_spec.hooks), path
            ),
            choose_export(estimator, eval_spec.exporters),
        )
    config = estimator.config
    if config.task_type == TaskType.PS:
        serve_until_end(config)
        return None
    evaluation = Evaluation(estimator, eval_spec)
    if config.task_type == TaskType.EVALUATOR:
        watch_checkpoints(evaluation, train_spec.max_steps, eval_spec)
        return None
    is_local = not config.cluster_spec.jobs
    listeners = list(train_spec.saving_listeners)
    is_master = config.task_type == TaskType.MASTER and not has_evaluator(os.environ)
    evaluates = is_local or is_master
    if evaluates:
        listeners.append(EvaluationListener(evaluation, eval_spec.throttle_secs))
    train_as_task(
        estimator,
        lambda hooks: estimator.train(
            train_spec.input_fn,
            hooks=[*train_spec.hooks, *hooks],
            max_steps=train_spec.max_steps,
            saving_listeners=listeners,
        ),
    )
    finish_task(estimator)
    if not evaluates:
        return None
    evaluation.finish()
    return evaluation.metrics, evaluation.exports


def train_as_task(estimator: Estimator, train: Callable[[list[Any]], object]) -> None:
    """Train as a task of the cluster; a program may train several rounds.

    Args:
        estimator: The estimator that trains.
        train: Trains with these additional hooks.
    """
    config = estimator.config
    if config.master:
        start_server(config)
    hooks = [StatusHook(estimator.model_dir)] if config.is_chief else []
    try:
        train(hooks)
    except Exception as error:
        if config.is_chief:
            write_status(estimator.model_dir, Status(State.FAILED, reason=str(error)))
        raise


def finish_task(estimator: Estimator) -> None:
    """Tell the evaluator and the parameter servers that this task will train no more."""
    config = estimator.config
    if config.is_chief:
        write_status(estimator.model_dir, Status(State.DONE, estimator.saved_step()))
    if config.master and config.num_ps_replicas:
        report_end(config, start_server(config).target)


class StatusHook(tf.train.SessionRunHook):
    """Writes the status of the run, with a heartbeat, for the evaluator and `phalanx runs`.

    Args:
        model_dir: The directory of the run.
    """

    def __init__(self, model_dir: str) -> None:
        self._model_dir = model_dir
        self._next = 0.0

    def begin(self) -> None:
        """Announce the run."""
        self._step = tf.train.get_global_step()
        tf.gfile.MakeDirs(self._model_dir)
        write_status(self._model_dir, Status(State.RUNNING))

    def before_run(self, run_context: Any) -> Any:
        """Ask for the step when a heartbeat is due."""
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + HEARTBEAT_SECONDS
        return tf.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Write the heartbeat."""
        if run_values.results is not None:
            write_status(self._model_dir, Status(State.RUNNING, int(run_values.results)))


class CheckpointEvaluation(ABC):
    """Evaluates the checkpoints of a run, each once."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._evaluated: str | None = None
        self.metrics: dict[str, Any] | None = None
        """The result of the last evaluation."""

    @property
    def model_dir(self) -> str:
        return self._estimator.model_dir

    def has_new_checkpoint(self) -> bool:
        return self._estimator.latest_checkpoint() not in (None, self._evaluated)

    def run(self, *, is_final: bool = False) -> None:
        """Evaluate the latest checkpoint, and export it; not if it is deleted meanwhile."""
        path = self._estimator.latest_checkpoint()
        if path is None:
            return
        try:
            self.metrics = self._evaluate(path)
            self._evaluated = path
            self._export(path, is_final=is_final)
        except (ValueError, tf.errors.OpError):
            if tf.train.checkpoint_exists(path):
                raise
            LOG.warning(
                "%s was deleted while it was evaluated: the next checkpoint is evaluated instead. "
                "To keep more of them, set RunConfig(keep_checkpoint_max=...)",
                path,
            )

    def finish(self) -> None:
        """Evaluate the last checkpoint, unless that was done, and make the final exports."""
        if not self.has_new_checkpoint() and self._evaluated is not None:
            self._export(self._evaluated, is_final=True)
        while self.has_new_checkpoint():
            self.run(is_final=True)

    @abstractmethod
    def _evaluate(self, path: str) -> dict[str, Any]:
        """Return the metrics of a checkpoint."""

    @abstractmethod
    def _export(self, path: str, *, is_final: bool) -> None:
        """Export a checkpoint that was evaluated."""


class Evaluation(CheckpointEvaluation):
    """Evaluates checkpoints by an EvalSpec, and calls its exporters."""

    def __init__(self, estimator: Estimator, spec: EvalSpec) -> None:
        super().__init__(estimator)
        self._spec = spec
        self.exports: list[Any] = []

    def _evaluate(self, path: str) -> dict[str, Any]:
        spec = self._spec
        return self._estimator.evaluate(
            spec.input_fn, spec.steps, list(spec.hooks), path, spec.name
        )

    def _export(self, path: str, *, is_final: bool) -> None:
        base = f"{self.model_dir}/export"
        self.exports = [
            each.export(self._estimator, f"{base}/{each.name}", path, self.metrics, is_final)
            for each in self._spec.exporters
        ]


class EvaluationListener(tf.train.CheckpointSaverListener):
    """Evaluates when a checkpoint is saved, at most every `throttle_secs`.

    Args:
        evaluation: What to do.
        throttle_secs: The shortest time between the starts of two evaluations.
        min_steps: The fewest steps between two evaluations.
    """

    def __init__(
        self, evaluation: CheckpointEvaluation, throttle_secs: float = 0.0, min_steps: int = 0
    ) -> None:
        self._evaluation = evaluation
        self._throttle_secs = throttle_secs
        self._min_steps = min_steps
        self._last_time = time.monotonic()
        self._last_step: int | None = None

    def after_save(self, session: Any, global_step_value: int) -> None:
        """Evaluate the checkpoint, if it is time; the one before the first step never is."""
        if self._last_step is None:
            self._last_step = global_step_value
            return
        is_due = time.monotonic() - self._last_time >= self._throttle_secs
        if is_due and global_step_value - self._last_step >= max(1, self._min_steps):
            self._last_time, self._last_step = time.monotonic(), global_step_value
            self._evaluation.run()


def watch_checkpoints(
    evaluation: CheckpointEvaluation,
    max_steps: int | None,
    spec: EvalSpec,
    predicate: Callable[[Any], bool] | None = None,
) -> None:
    """Evaluate each new checkpoint of a run that other tasks train, until the run is over.

    The run is over when a checkpoint has reached `max_steps`, when the chief says so, or when the
    predicate returns False for the last metrics.

    Raises:
        PeerError: For ten minutes there was neither a new checkpoint nor a sign of the chief.
    """
    started = time.monotonic()
    since = process_start_time()
    last_sign, last_start = started, -float("inf")
    while predicate is None or predicate(evaluation.metrics):
        status = read_status(evaluation.model_dir)
        is_done = status is not None and status.state is State.DONE and status.time >= since
        if status is not None and status.state is State.RUNNING:
            age = max(0.0, time.time() - status.time)
            last_sign = max(last_sign, time.monotonic() - age)
        now = time.monotonic()
        may_start = now - started >= spec.start_delay_secs or _has_reached(evaluation, max_steps)
        is_due = may_start and now - last_start >= spec.throttle_secs
        if is_done or _has_reached(evaluation, max_steps):
            evaluation.finish()
            return
        if is_due and evaluation.has_new_checkpoint():
            last_start = last_sign = time.monotonic()
            evaluation.run()
        elif now - last_sign > _SILENCE_SECONDS:
            raise PeerError(
                f"the evaluator found no new checkpoint in {evaluation.model_dir}, and the chief "
                f"gave no sign for {_SILENCE_SECONDS:.0f} s: check that it trains there"
            )
        time.sleep(_POLL_SECONDS)


def _has_reached(evaluation: CheckpointEvaluation, max_steps: int | None) -> bool:
    path = tf.train.latest_checkpoint(evaluation.model_dir)
    step = (path or "").rpartition("-")[2]
    return max_steps is not None and step.isdecimal() and int(step) >= max_steps
