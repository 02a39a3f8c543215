"""The loop: runs steps, calls hooks, saves, evaluates, and knows when to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from phalanx.errors import DataError, Interrupted
from phalanx.train.engines.base import Engine, Progress

if TYPE_CHECKING:
    from phalanx.train.hooks.base import Hook
    from phalanx.train.model_dir.summaries import Summaries

LOG = logging.getLogger("phalanx")

FAR = 2**31 - 1


@dataclass
class Position:
    """Where in the data a run is: what makes a restart go on where the run was."""

    epoch: int = 0
    batches: int = 0
    examples: int = 0
    totals: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros([0]))
    """The sum of the reports of this pass over the data; empty if there was none yet."""


class Reporter(Protocol):
    """What a session knows of the step it runs."""

    model: Any
    experiment: Any
    element_spec: Any

    @property
    def named(self) -> Mapping[str, Any]:
        """The variables by name, where the model has no names of its own for them."""

    @property
    def report_size(self) -> int:
        """How long a report is."""

    def read_report(self, report: np.ndarray[Any, Any]) -> dict[str, float]:
        """The means and metrics that a sum of reports stands for."""


class SessionCheckpoints(Protocol):
    """The checkpoints and the status that a session writes."""

    @property
    def directory(self) -> str: ...

    @property
    def latest(self) -> str | None:
        """The path of the newest checkpoint, if there is one."""

    def restore(self) -> tuple[int, Position]:
        """Read the newest checkpoint, if there is one; return its step and position."""

    def save(self, step: int, position: Position) -> str:
        """Write a checkpoint of the host variables; return its path."""

    def beat(self, step: int, now: float) -> None:
        """Write a heartbeat, if one is due."""

    def mark_done(self, step: int) -> None: ...

    def mark_failed(self, error: BaseException) -> None: ...


class Session:
    """One run of an experiment, on its chief.

        with session:
            while not session.should_stop():
                session.advance()

    Hooks see it: `step`, `examples`, `last_loss`, `learning_rate`, `model`, and what can be asked
    of it: `save`, `evaluate`, `request_stop`.
    """

    def __init__(
        self,
        step: Reporter,
        engine: Engine,
        checkpoints: SessionCheckpoints,
        summaries: Summaries,
        hooks: Sequence[Hook],
        *,
        epochs: int | None = None,
        evaluate: Callable[[int], dict[str, float]] | None = None,
        resume_data: bool = True,
        is_asked_to_stop: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._step = step
        self._engine = engine
        self._checkpoints = checkpoints
        self._hooks = list(hooks)
        self._epochs = epochs
        self._evaluate = evaluate
        self._resume_data = resume_data
        self._is_asked_to_stop = is_asked_to_stop
        self._clock = clock
        self._saved: int | None = None
        self._restored_step: int | None = None
        self._is_final = False
        self._told = 0
        self._total = np.zeros([step.report_size])
        self._last = np.zeros([step.report_size])
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

    @property
    def model(self) -> Any:
        """The model; `pull` brings its variables up to date."""
        return self._step.model

    @property
    def variables(self) -> dict[str, Any]:
        """The model's own variables by name: weights, and what it keeps beside them.

        The name of the model itself, which Keras makes up, is left out.
        """
        root = f"{getattr(self.model, 'name', '')}/"
        variables = self._engine.variables.model_variables()
        return dict(self._step.named) or {v.path.removeprefix(root): v for v in variables}

    @property
    def experiment(self) -> Any:
        """What is trained."""
        return self._step.experiment

    @property
    def element_spec(self) -> Any:
        """What a batch of the data looks like."""
        return self._step.element_spec

    @property
    def directory(self) -> str:
        """Where the run's checkpoints and summaries are."""
        return self._checkpoints.directory

    @property
    def learning_rate(self) -> float:
        """What the next update is made with."""
        return self._engine.variables.learning_rate()

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._engine.set_learning_rate(value)

    @property
    def last_loss_sum(self) -> float:
        """The sum of the last group's losses over its examples."""
        return float(self._last[1])

    @property
    def last_loss(self) -> float:
        """The mean loss of the last group of steps."""
        return self.last_loss_sum / max(float(self._last[0]), 1.0)

    def open_window(self) -> Window:
        """Means of loss and metrics over the steps between two looks at it."""
        return Window(self, self._total.copy())

    def read_values(self, report: np.ndarray[Any, Any]) -> dict[str, float]:
        """What a sum of reports stands for."""
        return self._step.read_report(report)

    @property
    def total_report(self) -> np.ndarray[Any, Any]:
        """The sum of all reports of this session."""
        return self._total

    def set_limit(self, step: int) -> None:
        """Never go past this step, and end there."""
        self.limit = step if self.limit is None else min(self.limit, step)

    def request_stop(self, reason: str) -> None:
        """End the loop after this group of steps; the first reason is kept."""
        self.stop_reason = self.stop_reason or reason

    def should_stop(self) -> bool:
        """Whether somebody asked for it."""
        return self.stop_reason is not None

    def pull(self) -> None:
        """Bring the weights to the model's own variables."""
        self._count(self._engine.pull())

    def save(self) -> str:
        """Write a checkpoint of this step, once."""
        if self._saved != self.step or self._checkpoints.latest is None:
            self.pull()
            self._saved = self.step
            path = self._checkpoints.save(self.step, self.position)
            for hook in self._hooks:
                hook.on_save(self, path)
        return str(self._checkpoints.latest)

    def evaluate(self) -> dict[str, float]:
        """Evaluate the weights as they are."""
        if self._evaluate is not None:
            self._count(self._engine.settle())
            self.evaluation = self._evaluate(self.step)
            self.evaluated_step = self.step
            for hook in self._hooks:
                hook.on_evaluate(self, self.evaluation)
            self.now = self._clock()
        return self.evaluation

    def __enter__(self) -> Session:
        self.now = self._clock()
        self.step, self.position = self._checkpoints.restore()
        self.is_restored = self._checkpoints.latest is not None
        self._saved = self._restored_step = self.step if self.is_restored else None
        self._told = self.step
        try:
            for hook in self._hooks:
                hook.on_restore(self)
            self._engine.begin(self.step, self.position.batches if self._resume_data else 0)
            for hook in self._hooks:
                hook.begin(self)
            self._check_epochs()
        except BaseException as error:
            self._fail(error)
            raise
        self.now = self._clock()
        return self

    def advance(self) -> None:
        """Run a group of steps, up to the next at which a hook must be called."""
        for hook in self._hooks:
            hook.before_step(self)
        dues = [due for hook in self._hooks if (due := hook.due(self.step)) is not None]
        limit = self.limit or FAR
        progress = self._engine.advance(self.step, min([*dues, limit]), limit)
        self.now = self._clock()
        self._count(progress)
        is_last = self.limit is not None and self.step >= self.limit
        if progress.ended and self._epochs is not None:
            is_last = is_last or self.position.epoch + progress.passes >= self._epochs
        if is_last:
            self._finalize()
        # To save may have brought some steps too.
        if self.step != self._told:
            self._told = self.step
            for hook in self._hooks:
                hook.after_step(self)
        if self.limit is not None and self.step >= self.limit:
            self.request_stop(f"step {self.step} of {self.limit} is done")
        if progress.ended:
            self._end_epoch(progress.passes)
        self._checkpoints.beat(self.step, self.now)
        if self._is_asked_to_stop() or self._engine.is_interrupted():
            self.is_interrupted = True
            self.request_stop("asked to end (SIGTERM)")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                if not self.is_interrupted:
                    self._finalize()
                for hook in self._hooks:
                    hook.end(self)
                if self.is_interrupted:
                    raise Interrupted(
                        f"asked to end (SIGTERM): step {self.step} is saved in "
                        f"{self._checkpoints.directory}; run it again to go on"
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
            self._last = progress.report
        self._total = self._total + progress.report
        self.examples += float(progress.report[0])
        self.position.examples += round(float(progress.report[0]))
        self.position.batches += progress.steps
        totals = self.position.totals
        self.position.totals = progress.report + (totals if len(totals) else 0.0)

    def _finalize(self) -> None:
        """Give the weights their final values: a checkpoint or an evaluation from before is old."""
        if not self._is_final:
            self._is_final = True
            self._count(self._engine.settle())
            if self._engine.finalize() and self.step != self._restored_step:
                self._saved = self.evaluated_step = None

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, Interrupted):
            for hook in self._hooks:
                hook.on_error(self, error)
        self._checkpoints.mark_failed(error)
        self._engine.finish(error)

    def _end_epoch(self, passes: int) -> None:
        totals = self.position.totals
        if not self.position.batches:
            again = f" when it was read again after step {self.step}" if self.step else ""
            raise DataError(
                f"the data ended too early: train_data gave nothing{again}, and {self._wanted()}; "
                "make a dataset that can be read more than once, or ask for less"
            )
        self.position.epoch += passes
        self.position.batches = 0
        self.position.totals = np.zeros([0])
        if len(totals) and totals[0] > 0:
            self._report_epoch(self.read_values(totals), passes)
        self._check_epochs()
        if not self.should_stop():
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
        if self._epochs is not None and self.position.epoch >= self._epochs:
            self.request_stop(f"the data was read {self._epochs} times")

    def _wanted(self) -> str:
        if self._epochs is not None:
            return f"{self._epochs} epochs are wanted"
        return f"{self.limit or 'more'} steps are wanted"


@dataclass
class Window:
    """The means over the steps since they were last read."""

    session: Session
    _seen: np.ndarray[Any, Any] = field(repr=False)

    def read(self) -> dict[str, float]:
        """Loss and metrics since the last time; empty if there was no step."""
        report = self.session.total_report - self._seen
        self._seen = self.session.total_report.copy()
        return self.session.read_values(report) if report[0] > 0 else {}
