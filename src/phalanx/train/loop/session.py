"""The training loop: runs steps, calls hooks, saves, evaluates, and decides when to stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from phalanx.errors import CheckpointError, DataError, DivergenceError, Interrupted, SaveError
from phalanx.train.engines.base import Engine, Progress
from phalanx.train.loop.base import Evaluate, EvaluationAbandoned, SessionCheckpoints
from phalanx.train.loop.metrics_window import MetricsWindow
from phalanx.train.loop.rollbacks import Rollbacks
from phalanx.train.loop.save_retries import SaveRetries
from phalanx.train.loop.session_values import SessionValues
from phalanx.train.types import Array

if TYPE_CHECKING:
    from phalanx.train.custom_loop.custom_step import CustomStep
    from phalanx.train.hooks.base import Hook
    from phalanx.train.model_dir.summaries import Summaries
    from phalanx.train.step.step_function import StepFunction

LOG = logging.getLogger("phalanx")

_NO_LIMIT = 2**31 - 1


class Session(SessionValues):
    """Trains one experiment, on the chief.

        with session:
            while not session.should_stop():
                session.advance()

    Hooks read the values of a `SessionValues`, and may call `save`, `evaluate`, `pull`, `push`,
    `set_limit` and `request_stop`.
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
        max_rollbacks: int = 0,
    ) -> None:
        super().__init__(step_function, engine, checkpoints, summaries)
        self._hooks = list(hooks)
        self.epochs = epochs
        self.steps_per_epoch = steps_per_epoch or steps_per_pass
        self._steps_per_pass = steps_per_pass
        # Where this is set, an epoch ends after so many steps, and the next one reads on.
        self._epoch_limit = steps_per_epoch
        self._initial_epoch = initial_epoch
        self._evaluate = evaluate
        self.can_evaluate = evaluate is not None
        self._resume_data = resume_data
        self._is_asked_to_stop = is_asked_to_stop
        self._clock = clock
        self._save_retries = SaveRetries(save_retry_seconds, clock)
        self._rollbacks = Rollbacks(max_rollbacks)
        self._windows: list[MetricsWindow] = []
        self._saved_step: int | None = None
        self._restored_step: int | None = None
        self._is_final = False
        self._is_rewound = False
        # Whether the data has ended, and is not opened again yet.
        self._has_pass_ended = False
        self._hooked_step = 0
        # The sums of the reports in this session, and in its epoch, before the last group of steps.
        self._good_reports = (self.total_report, self.position.totals)

    def open_window(self) -> MetricsWindow:
        """Return a window that reads the means of the loss and the metrics from now on."""
        window = MetricsWindow(self)
        self._windows.append(window)
        return window

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
                shards = () if self._has_pass_ended else self._engine.read_shards()
                self.position.shards = tuple(shards)
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
            self._rollbacks.note_saved()
            for hook in self._hooks:
                hook.on_save(self, path)

    def evaluate(self) -> dict[str, float]:
        """Evaluate the current weights, and return the loss and the metrics."""
        if self._evaluate is not None:
            self._count(self._engine.settle())
            for hook in self._hooks:
                hook.before_evaluate(self)
            one_by_one = any(hook.needs_evaluation_batches for hook in self._hooks)
            try:
                self.evaluation = self._evaluate(
                    self.step, self._notify_evaluation, 1 if one_by_one else None
                )
            except EvaluationAbandoned:
                LOG.info("the evaluation of step %d was left for SIGTERM", self.step)
                self.is_interrupted = True
                return self.evaluation
            for hook in self._hooks:
                hook.on_evaluate(self, self.evaluation)
            self.evaluated_step = self.step
            self.now = self._clock()
        return self.evaluation

    def _notify_evaluation(self, batches: int, report: Array) -> None:
        if self._is_asked_to_stop() and self._engine.can_abandon_evaluation:
            raise EvaluationAbandoned
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
            shards = self.position.shards if self._resume_data else ()
            self._engine.begin(self.step, skip, passes, shards)
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
            with self._roll_back_if_diverged():
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
            with self._roll_back_if_diverged():
                self.save()
        self._good_reports = (self.total_report, self.position.totals)
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

    @contextmanager
    def _roll_back_if_diverged(self) -> Iterator[None]:
        try:
            yield
        except DivergenceError as error:
            self._roll_back(error)

    def _roll_back(self, error: DivergenceError) -> None:
        """Go back to the last good checkpoint, and on with the data behind the bad steps."""
        self._finish_save(waits=True)
        if self._checkpoints.latest is None:
            raise error
        pass_over = self._rollbacks.begin(error)
        self._count(self._engine.drop())
        diverged_at = self.step
        try:
            self.step, _ = self._checkpoints.restore(pass_over)
        except CheckpointError as missing:
            raise error from missing
        self._engine.resume(self.step)
        LOG.warning(
            "rolled back to step %d, for the %d. time: %s. Training goes on behind the data that "
            "step %d has read",
            self.step, self._rollbacks.count, error, diverged_at,
        )  # fmt: skip
        self._hooked_step = self.step
        self._saved_step = self.evaluated_step = None
        self._is_final = False
        self._last_report = np.zeros_like(self._last_report)
        self.total_report, self.position.totals = self._good_reports
        for window in self._windows:
            window.restart()
        for hook in self._hooks:
            hook.on_rollback(self)

    def _finalize(self) -> None:
        """Give the weights their final values: a checkpoint or an evaluation from before is old."""
        if not self._is_final:
            self._is_final = True
            self._count(self._engine.settle())
            if self._engine.finalize() and self.step != self._restored_step:
                self._saved_step = self.evaluated_step = None

    def _rescue(self) -> None:
        """Save what the tasks have that were not lost, if nothing else is missing."""
        try:
            progress = self._engine.rescue(self.step)
            if progress is None:
                return
            self._count(progress)
            if not all(hook.may_save(self) for hook in self._hooks):
                return
            self.position.shards = tuple(self._engine.read_shards())
            self._note_saved(self._checkpoints.save(self.step, self.position))
            self._note_saved(self._checkpoints.finish_save(waits=True))
            LOG.warning("step %d was saved with the replicas of what was lost", self.step)
        except Exception as failure:
            LOG.warning("nothing could be saved after the loss: %s", failure)

    def _fail(self, error: BaseException) -> None:
        if not isinstance(error, Interrupted):
            self._rescue()
            for hook in self._hooks:
                hook.on_error(self, error)
        self._checkpoints.mark_failed(error)
        self._engine.finish(error)

    def _read_again(self) -> None:
        """Start the data again, which ended with the last epoch."""
        if self._is_rewound:
            self._end_epoch(1, True)
        self._is_rewound = True
        self._rewind()

    def _rewind(self) -> None:
        self._engine.rewind()
        self._has_pass_ended = False

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
        self._has_pass_ended = has_ended
        if len(totals) and totals[0] > 0:
            self._report_epoch(self.read_values(totals), passes)
        self._check_epochs()
        if has_ended and not self.should_stop():
            self._rewind()

    def _report_epoch(self, values: dict[str, float], passes: int) -> None:
        last = self.position.epoch
        if not any(hook.shows_epochs for hook in self._hooks):
            LOG.info(
                "epoch %s: %s",
                last if passes == 1 else f"{last - passes + 1} to {last}",
                ", ".join(f"{name} = {value:.5g}" for name, value in values.items()),
            )
        with self._roll_back_if_diverged():
            for hook in self._hooks:
                hook.on_epoch(self, values)

    def _check_epochs(self) -> None:
        if self.epochs is not None and self.position.epoch >= self.epochs:
            self.request_stop(f"epoch {self.position.epoch} of {self.epochs} is done")
