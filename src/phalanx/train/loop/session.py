"""The training loop: runs steps, calls hooks, saves, evaluates, and decides when to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from phalanx.errors import DataError, Interrupted, SaveError
from phalanx.train.engines.base import Engine, Notify, Progress
from phalanx.train.loop.position import Position
from phalanx.train.loop.save_retries import SaveRetries
from phalanx.train.types import Array, ElementSpec, KerasVariable, Model, Optimizer

if TYPE_CHECKING:
    from phalanx.train.custom_loop.custom_step import CustomStep
    from phalanx.train.experiment import Experiment
    from phalanx.train.hooks.base import Hook
    from phalanx.train.model_dir.summaries import Summaries
    from phalanx.train.step.step_function import StepFunction

LOG = logging.getLogger("phalanx")

_NO_LIMIT = 2**31 - 1


class Evaluate(Protocol):
    """Evaluates the current weights, as those of a step."""

    def __call__(
        self, step: int, notify: Notify, batches_per_call: int | None
    ) -> dict[str, float]: ...


class SessionCheckpoints(Protocol):
    """The checkpoints and the status that a session writes."""

    @property
    def directory(self) -> str: ...

    @property
    def latest(self) -> str | None:
        """The path of the newest checkpoint, if there is one."""

    def restore(self) -> tuple[int, Position]:
        """Read the newest checkpoint, if there is one; return its step and position."""

    def save(self, step: int, position: Position) -> str | None:
        """Write a checkpoint; return its path, or None if the background writes it."""

    def finish_save(self, waits: bool) -> str | None:
        """Return the path of a checkpoint that the background has written since the last call."""

    def heartbeat(self, step: int, now: float) -> None:
        """Write a heartbeat, if one is due."""

    def mark_done(self, step: int) -> None: ...

    def mark_failed(self, error: BaseException) -> None: ...


class Session:
    """Trains one experiment, on the chief.

        with session:
            while not session.should_stop():
                session.advance()

    Hooks read `step`, `examples`, `last_loss`, `learning_rate` and `model`, and may call `save`,
    `evaluate`, `pull`, `push`, `set_limit` and `request_stop`.
    """

    def __init__(
        self,
        step_function: StepFunction | CustomStep,
        engine: Engine,
        checkpoints: SessionCheckpoints,
        summaries: Summaries,
        hooks: Sequence[Hook],
        *,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        steps_per_pass: int | None = None,
        initial_epoch: int = 0,
        evaluate: Evaluate | None = None,
        resume_data: bool = True,
        is_asked_to_stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        save_retry_seconds: float = 3600,
    ) -> None:
        self._step_function = step_function
        self._engine = engine
        self._checkpoints = checkpoints
        self._hooks = list(hooks)
        self.epochs = epochs
        self.steps_per_epoch = steps_per_epoch or steps_per_pass
        """About how many steps an epoch has, if that is known."""
        self._steps_per_pass = steps_per_pass
        # Where this is set, an epoch ends after so many steps, and the next one reads on.
        self._epoch_limit = steps_per_epoch
        self._initial_epoch = initial_epoch
        self._evaluate = evaluate
        self._resume_data = resume_data
        self._is_asked_to_stop = is_asked_to_stop
        self._clock = clock
        self._save_retries = SaveRetries(save_retry_seconds, clock)
        self._saved_step: int | None = None
        self._restored_step: int | None = None
        self._is_final = False
        self._is_rewound = False
        self._hooked_step = 0
        self._last_report = np.zeros([step_function.report_size])
        self.total_report = np.zeros([step_function.report_size])
        """The sum of all reports of this session."""
        self.summaries = summaries
        self.step = 0
        self.examples = 0.0
        self.position = Position()
        self.limit: int | None = None
        self.now = 0.0
        self.stop_reason: str | None = None
        self.is_interrupted = False
        self.is_restored = False
        self.evaluation: dict[str, float] = {}
        self.evaluated_step: int | None = None
        self.stragglers: frozenset[str] = frozenset()
        """The trainers that are much slower than the others, by task."""

    @property
    def model(self) -> Model:
        """The model; call `pull` before you read its variables."""
        return self._step_function.model

    @property
    def optimizer(self) -> Optimizer | None:
        """The optimizer on the host; None in a loop that the user writes."""
        return self._step_function.optimizer

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """All optimizers on the host: several if the model's own `train_step` calls several."""
        return self._step_function.optimizers

    @property
    def updates_in_place(self) -> bool:
        """Whether a step may call an optimizer several times."""
        return self._step_function.updates_in_place

    @property
    def variables(self) -> dict[str, KerasVariable]:
        """The weights and the other state of the model by name, without the model's own name."""
        root = f"{getattr(self.model, 'name', '')}/"
        variables = self._engine.variables.model_variables()
        return dict(self._step_function.named) or {v.path.removeprefix(root): v for v in variables}

    @property
    def experiment(self) -> Experiment | None:
        """The experiment; None in a loop that the user writes."""
        return self._step_function.experiment

    @property
    def element_spec(self) -> ElementSpec:
        return self._step_function.element_spec

    @property
    def directory(self) -> str:
        """The directory of the run's checkpoints and summaries."""
        return self._checkpoints.directory

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next update."""
        return self._engine.variables.learning_rate()

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._engine.set_learning_rate(value)

    @property
    def trainer_steps(self) -> Mapping[str, int]:
        """The steps of each trainer in this session, by task, where they differ from each other."""
        return self._engine.trainer_steps()

    @property
    def variable_bytes(self) -> Mapping[str, int]:
        """The bytes of the variables on each parameter server, by task."""
        return self._engine.variable_bytes()

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint, if there is one."""
        return self._checkpoints.latest

    @property
    def calls_in_flight(self) -> int:
        """How many groups of steps were dispatched to trainers and have not ended yet."""
        return self._engine.calls_in_flight

    @property
    def waited_seconds(self) -> float:
        """How long this task has waited for the other trainers so far."""
        return self._engine.waited_seconds

    @property
    def last_loss(self) -> float:
        """The mean loss of the last group of steps."""
        return float(self._last_report[1]) / max(float(self._last_report[0]), 1.0)

    def open_window(self) -> MetricsWindow:
        """Return a window that reads the means of the loss and the metrics from now on."""
        return MetricsWindow(self, self.total_report.copy())

    def read_values(self, report: Array) -> dict[str, float]:
        """Compute the mean loss and the metrics from a sum of reports."""
        return self._step_function.read_report(report)

    def set_limit(self, step: int) -> None:
        """End the run at this step, or at an earlier limit if there is one."""
        self.limit = step if self.limit is None else min(self.limit, step)

    def request_stop(self, reason: str) -> None:
        """End the loop after this group of steps. Only the first reason counts."""
        self.stop_reason = self.stop_reason or reason

    def should_stop(self) -> bool:
        return self.stop_reason is not None

    def pull(self) -> None:
        """Copy the weights from the devices to the variables of the model."""
        self._count(self._engine.pull())

    def push(self) -> None:
        """Copy the variables of the model and the optimizer to every replica, on all hosts.

        Call `pull` before you change them: the others would be set back to old values.
        """
        self._count(self._engine.settle())
        self._engine.push()
        self._saved_step = self.evaluated_step = None

    @property
    def can_evaluate(self) -> bool:
        """Whether there is evaluation data."""
        return self._evaluate is not None

    def save(self) -> str:
        """Write a checkpoint, unless this step is saved already; return the newest one's path.

        If it cannot be written, as on a full disk, the run goes on and tries again later.
        """
        self._finish_save(waits=True)
        if self._saved_step != self.step or self._checkpoints.latest is None:
            self.pull()
            if not all(hook.may_save(self) for hook in self._hooks):
                return str(self._checkpoints.latest or "")
            try:
                path = self._checkpoints.save(self.step, self.position)
            except SaveError as error:
                self._save_retries.fail(error, self.step)
                return str(self._checkpoints.latest or "")
            self._saved_step = self.step
            self._note_saved(path)
        return str(self._checkpoints.latest or "")

    def _finish_save(self, waits: bool = False) -> None:
        """Notice whether a checkpoint that is written in the background is complete."""
        try:
            self._note_saved(self._checkpoints.finish_save(waits))
        except SaveError as error:
            self._saved_step = None
            self._save_retries.fail(error, self.step)

    def _note_saved(self, path: str | None) -> None:
        if path is not None:
            self._save_retries.succeed()
            for hook in self._hooks:
                hook.on_save(self, path)

    def evaluate(self) -> dict[str, float]:
        """Evaluate the current weights, and return the loss and the metrics."""
        if self._evaluate is not None:
            self._count(self._engine.settle())
            for hook in self._hooks:
                hook.before_evaluate(self)
            one_by_one = any(hook.needs_evaluation_batches for hook in self._hooks)
            self.evaluation = self._evaluate(
                self.step, self._notify_evaluation, 1 if one_by_one else None
            )
            for hook in self._hooks:
                hook.on_evaluate(self, self.evaluation)
            self.evaluated_step = self.step
            self.now = self._clock()
        return self.evaluation

    def _notify_evaluation(self, batches: int, report: Array) -> None:
        for hook in self._hooks:
            hook.on_evaluation_batch(self, batches, report)

    def __enter__(self) -> Session:
        self.now = self._clock()
        self.step, self.position = self._checkpoints.restore()
        self.is_restored = self._checkpoints.latest is not None
        if not self.is_restored:
            self.position.epoch = self._initial_epoch
        self._saved_step = self._restored_step = self.step if self.is_restored else None
        self._hooked_step = self.step
        try:
            for hook in self._hooks:
                hook.on_restore(self)
            passes = skip = 0
            if self._resume_data:
                passes, skip = self.position.count_read(
                    self._initial_epoch, self._epoch_limit, self._steps_per_pass
                )
            self._engine.begin(self.step, skip, passes)
            for hook in self._hooks:
                hook.begin(self)
            self._check_epochs()
        except BaseException as error:
            self._fail(error)
            raise
        self.now = self._clock()
        return self

    def advance(self) -> None:
        """Run a group of steps, at most up to the next step at which a hook is due."""
        for hook in self._hooks:
            hook.before_step(self)
        dues = [due for hook in self._hooks if (due := hook.due(self.step)) is not None]
        limit = self.limit or _NO_LIMIT
        if self._epoch_limit is not None:
            limit = min(limit, self.step + self._epoch_limit - self.position.batches)
        progress = self._engine.advance(self.step, min([*dues, limit]), limit)
        self.now = self._clock()
        self._count(progress)
        is_full = self._epoch_limit is not None and self.position.batches >= self._epoch_limit
        is_last = self.limit is not None and self.step >= self.limit
        if (progress.ended or is_full) and self.epochs is not None:
            is_last = is_last or self.position.epoch + progress.passes >= self.epochs
        # `fit` evaluates the last epoch before the weights get their final values.
        if is_last and not any(hook.needs_epochs for hook in self._hooks):
            self._finalize()
        # Asynchronous steps may also be counted when a checkpoint is saved.
        if self.step != self._hooked_step:
            self._hooked_step = self.step
            for hook in self._hooks:
                hook.after_step(self)
        if self.limit is not None and self.step >= self.limit:
            self.request_stop(f"step {self.step} of {self.limit} is done")
        if progress.ended and self._epoch_limit is not None and not self.position.batches:
            self._read_again()
        elif progress.ended or is_full:
            self._end_epoch(progress.passes, progress.ended)
        self._finish_save()
        if self._save_retries.is_due():
            self.save()
        self._checkpoints.heartbeat(self.step, self.now)
        if self._is_asked_to_stop() or self._engine.is_interrupted():
            self.is_interrupted = True
            self.request_stop("the run received SIGTERM")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                for hook in self._hooks:
                    hook.on_stop(self)
                if not self.is_interrupted:
                    self._finalize()
                for hook in self._hooks:
                    hook.end(self)
                self._finish_save(waits=True)
                while self._save_retries.is_failing:
                    self._save_retries.wait(self._is_asked_to_stop)
                    self.save()
                if self.is_interrupted:
                    raise Interrupted(
                        f"the run received SIGTERM: step {self.step} is saved in "
                        f"{self._checkpoints.directory}; run it again to continue"
                    )
            except BaseException as failure:
                self._fail(failure)
                raise
            try:
                self._engine.finish(None)
            except BaseException as failure:
                self._checkpoints.mark_failed(failure)
                raise
            self._checkpoints.mark_done(self.step)
        else:
            self._fail(error)

    def _count(self, progress: Progress | None) -> None:
        if progress is None:
            return
        self.step += progress.steps
        if progress.steps:
            self._last_report = progress.report
        self.total_report = self.total_report + progress.report
        self.examples += float(progress.report[0])
        self.position.count(progress.steps, progress.report)

    def _finalize(self) -> None:
        """Give the weights their final values: a checkpoint or an evaluation from before is old."""
        if not self._is_final:
            self._is_final = True
            self._count(self._engine.settle())
            if self._engine.finalize() and self.step != self._restored_step:
                self._saved_step = self.evaluated_step = None

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, Interrupted):
            for hook in self._hooks:
                hook.on_error(self, error)
        self._checkpoints.mark_failed(error)
        self._engine.finish(error)

    def _read_again(self) -> None:
        """Start the data again, which ended with the last epoch."""
        if self._is_rewound:
            self._end_epoch(1, True)
        self._is_rewound = True
        self._engine.rewind()

    def _end_epoch(self, passes: int, has_ended: bool) -> None:
        totals = self.position.totals
        self._is_rewound = False
        if not self.position.batches:
            goal = f"{self.epochs} epochs" if self.epochs else f"{self.limit or 'more'} steps"
            again = f" when it was read again after step {self.step}" if self.step else ""
            raise DataError(
                f"the data ended too early: train_data returned no batch{again}, and "
                f"{goal} are needed; return a dataset that can be read more than once, or set "
                "fewer steps or epochs"
            )
        if has_ended and self._epoch_limit and self.position.batches < self._epoch_limit:
            LOG.warning(
                "the data ended after %d of %d steps of epoch %d, and is read again from its "
                "start: call .repeat() on it, or set a smaller steps_per_epoch",
                self.position.batches, self._epoch_limit, self.position.epoch + 1,
            )  # fmt: skip
        self.position.end_epoch(passes)
        if len(totals) and totals[0] > 0:
            self._report_epoch(self.read_values(totals), passes)
        self._check_epochs()
        if has_ended and not self.should_stop():
            self._engine.rewind()

    def _report_epoch(self, values: dict[str, float], passes: int) -> None:
        last = self.position.epoch
        LOG.info(
            "epoch %s: %s",
            last if passes == 1 else f"{last - passes + 1} to {last}",
            ", ".join(f"{name} = {value:.5g}" for name, value in values.items()),
        )
        for hook in self._hooks:
            hook.on_epoch(self, values)

    def _check_epochs(self) -> None:
        if self.epochs is not None and self.position.epoch >= self.epochs:
            self.request_stop(f"epoch {self.position.epoch} of {self.epochs} is done")


@dataclass
class MetricsWindow:
    """The means of the loss and the metrics over the steps since they were last read."""

    session: Session
    _start: Array = field(repr=False)

    def read(self) -> dict[str, float]:
        """Return the means since the last call; empty if there was no step."""
        report = self.session.total_report - self._start
        self._start = self.session.total_report.copy()
        return self.session.read_values(report) if report[0] > 0 else {}
