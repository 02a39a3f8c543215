"""The hook interface, the schedules that decide when a hook acts, and periodic hooks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from phalanx.errors import ConfigurationError
from phalanx.train.loop.session import Session
from phalanx.train.types import Array


class Hook:
    """Code that a session calls before, during and after the training loop.

    Override the methods that you need:

        class PrintSaves(hooks.Hook):
            def on_save(self, session, path):
                print(f"saved step {session.step} to {path}")

    Derive from `PeriodicHook` to act at some steps only. Only the chief runs hooks, except those of
    a `DistributedSession` that trains synchronously. A session runs steps in groups, and calls
    `before_step` and `after_step` once for each group. A group never goes past the step that `due`
    returns.
    """

    needs_gradient_norm = False
    """Whether each step must report `gradient_norm`."""
    needs_epochs = False
    """Whether the hook acts at the end of each epoch, before all other hooks.

    Asynchronous trainers then wait for each other at the end of an epoch, and an optimizer with
    moving averages writes them to the weights only after `on_stop`.
    """
    shows_epochs = False
    """Whether the hook prints the loss and the metrics of each epoch: they are not logged then."""
    needs_evaluation_batches = False
    """Whether `on_evaluation_batch` must be called for every single batch."""

    def on_restore(self, session: Session) -> None:
        """Called after the weights are initialized or restored, before they go to the devices."""

    def begin(self, session: Session) -> None:
        """Called before the first step."""

    def due(self, step: int) -> int | None:
        """Return the next step after which the session must call this hook, or None."""
        return None

    def before_step(self, session: Session) -> None:
        """Called before each group of steps."""

    def after_step(self, session: Session) -> None:
        """Called after each group of steps."""

    def may_save(self, session: Session) -> bool:
        """Return whether a checkpoint may be written now; `session.variables` are up to date."""
        return True

    def on_save(self, session: Session, path: str) -> None:
        """Called after the session has written a checkpoint.

        Args:
            session: The session.
            path: The path of the checkpoint.
        """

    def before_evaluate(self, session: Session) -> None:
        """Called before the training processes evaluate the model."""

    def on_evaluation_batch(self, session: Session, batches: int, report: Array) -> None:
        """Called during an evaluation, after one batch or several.

        Args:
            session: The session.
            batches: How many batches the chief has evaluated.
            report: The sum of their reports; `session.read_values(report)` returns the metrics.
        """

    def on_evaluate(self, session: Session, values: Mapping[str, float]) -> None:
        """Called after the training processes have evaluated the model.

        Args:
            session: The session.
            values: The loss and the metrics of the evaluation.
        """

    def on_epoch(self, session: Session, values: Mapping[str, float]) -> None:
        """Called after each pass over the training data.

        Args:
            session: The session.
            values: The means of the loss and the metrics over the whole pass.
        """

    def on_rollback(self, session: Session) -> None:
        """Called after the session has gone back to a checkpoint because the run diverged.

        `session.step` is that of the checkpoint again; `session.examples` and the position in the
        data go on. If the steps diverged during a call of `after_step` or `on_epoch`, the hooks
        that follow are not called.
        """

    def on_stop(self, session: Session) -> None:
        """Called after the last step of a run that did not fail, before `end` of any hook."""

    def end(self, session: Session) -> None:
        """Called after the last step of a run that did not fail, with the final weights."""

    def on_error(self, session: Session, error: BaseException) -> None:
        """Called instead of `end` when the run fails.

        Args:
            session: The session.
            error: The error that ends the run.
        """


class When(Protocol):
    """Decides when a periodic hook acts: `Every`, `At`, or a class of your own."""

    def next_step(self, step: int) -> int | None:
        """Return the next step at which the hook is due, or None if steps do not decide it."""

    def start(self, step: int, now: float) -> None:
        """Start counting.

        Args:
            step: The step at which the session begins.
            now: The time in seconds, by the session's clock.
        """

    def is_due(self, step: int, now: float) -> bool:
        """Check whether the hook must act now; if so, start counting again.

        Args:
            step: The current step.
            now: The time in seconds, by the session's clock.

        Returns:
            Whether the hook must act now.
        """


@dataclass
class Every(When):
    """Acts every `steps` steps or every `seconds` seconds; if both are set, whichever comes first.

    An `Every` counts, so do not share one between hooks.

    >>> every = Every(steps=10)
    >>> every.next_step(13)
    20
    >>> every.is_due(step=9, now=0.0), every.is_due(step=10, now=0.0), every.is_due(11, 0.0)
    (False, True, False)
    """

    steps: int | None = None
    seconds: float | None = None
    _periods: int = 0
    _last_time: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("steps", self.steps), ("seconds", self.seconds)):
            if value is not None and value <= 0:
                raise ConfigurationError(f"Every({name}={value}): it must be more than 0, or None")

    def next_step(self, step: int) -> int | None:
        return None if self.steps is None else (step // self.steps + 1) * self.steps

    def start(self, step: int, now: float) -> None:
        self._periods = step // self.steps if self.steps else 0
        self._last_time = now

    def is_due(self, step: int, now: float) -> bool:
        periods = step // self.steps if self.steps else 0
        if self._last_time is None:
            self._last_time = now
        is_late = self.seconds is not None and now - self._last_time >= self.seconds
        if periods <= self._periods and not is_late:
            return False
        self._periods, self._last_time = periods, now
        return True


class At(When):
    """Acts once at each of the given steps.

    A step inside a group of steps counts when the group is done.

    Args:
        steps: The steps at which to act.

    >>> at = At(10, 100)
    >>> at.next_step(10)
    100
    >>> at.is_due(step=9, now=0.0), at.is_due(step=12, now=0.0), at.is_due(step=13, now=0.0)
    (False, True, False)
    """

    def __init__(self, *steps: int) -> None:
        self._steps = sorted(steps)
        self._last_step = 0

    def next_step(self, step: int) -> int | None:
        return next((at for at in self._steps if at > step), None)

    def start(self, step: int, now: float) -> None:
        self._last_step = step

    def is_due(self, step: int, now: float) -> bool:
        is_due = any(self._last_step < at <= step for at in self._steps)
        self._last_step = step
        return is_due


class PeriodicHook(Hook):
    """Calls `act` whenever `when` is due. Override `act`:

        class PrintStep(hooks.PeriodicHook):
            def act(self, session):
                print(session.step)

        PrintStep(hooks.Every(steps=100))

    Args:
        when: Decides when to act.
    """

    def __init__(self, when: When) -> None:
        self.when = when

    def begin(self, session: Session) -> None:
        self.when.start(session.step, session.now)

    def due(self, step: int) -> int | None:
        return self.when.next_step(step)

    def after_step(self, session: Session) -> None:
        if self.when.is_due(session.step, session.now):
            self.act(session)

    def on_rollback(self, session: Session) -> None:
        self.when.start(session.step, session.now)

    def act(self, session: Session) -> None:
        """Do what the hook is for."""
        raise NotImplementedError


class ActionHook(PeriodicHook):
    """Calls a function with the session whenever `when` is due.

        ActionHook(Every(steps=100), lambda session: print(session.step, session.last_loss))
        ActionHook(At(1000, 2000), halve_the_learning_rate)

    Args:
        when: Decides when to call the function.
        what: The function.
    """

    def __init__(self, when: When, what: Callable[[Session], object]) -> None:
        super().__init__(when)
        self.what = what

    def act(self, session: Session) -> None:
        self.what(session)


def read_metric(hook: Hook, metric: str, values: Mapping[str, float]) -> float:
    """Return the value of a metric that a hook needs, or raise an error that names the hook."""
    if metric not in values:
        raise ConfigurationError(
            f"{type(hook).__name__} looks at {metric!r}, but the evaluation has "
            f"{', '.join(sorted(values))}"
        )
    return values[metric]


def find_total(session: Session) -> int | None:
    """Return the step at which the run ends, as far as it is known."""
    limits = [] if session.limit is None else [session.limit]
    if session.epochs is not None and session.steps_per_epoch:
        limits.append(session.epochs * session.steps_per_epoch)
    return max(min(limits), session.step) if limits else None
