"""The hook protocol, and *when* a hook acts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from phalanx.errors import ConfigurationError

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session


class Hook:
    """Something that happens around the loop. Override what you need:

        class Ring(hooks.Hook):
            def on_save(self, session, path):
                print(f"saved {session.step}")

    To act now and then, derive from `PeriodicHook`. The chief alone runs hooks, but for those of a
    `DistributedSession` in step. A session calls `after_step` after each group of steps, never
    later than the step that `due` names.
    """

    needs_gradient_norm = False
    """Whether each step must report `gradient_norm`."""

    def on_restore(self, session: Session) -> None:
        """After the weights were made or restored, before they go to where they are trained."""

    def begin(self, session: Session) -> None:
        """Before the first step; weights are restored."""

    def due(self, step: int) -> int | None:
        """The next step after which this hook must be called; None if it does not mind."""
        return None

    def before_step(self, session: Session) -> None:
        """Before a step, or a group of steps."""

    def after_step(self, session: Session) -> None:
        """After a step, or a group of steps."""

    def on_save(self, session: Session, path: str) -> None:
        """After a checkpoint was written."""

    def on_evaluate(self, session: Session, values: Mapping[str, float]) -> None:
        """After an evaluation in the training processes."""

    def on_epoch(self, session: Session, values: Mapping[str, float]) -> None:
        """After a pass over the training data: the means over all of it."""

    def end(self, session: Session) -> None:
        """After the last step, if all went well."""

    def on_error(self, session: Session, error: BaseException) -> None:
        """Instead of `end`, if something went wrong."""


class When(Protocol):
    """*When* to act, apart from *what* to do: `Every`, `At`, or one of your own."""

    def next_step(self, step: int) -> int | None:
        """The next step at which it is due, as far as steps decide it."""

    def start(self, step: int, now: float) -> None:
        """Count from here."""

    def is_due(self, step: int, now: float) -> bool:
        """Whether to act now; asked again, no longer."""


@dataclass
class Every:
    """Each so many steps, or each so many seconds; with both, whatever comes first.

    It keeps count, so every hook needs one of its own.

    >>> every = Every(steps=10)
    >>> every.next_step(13)
    20
    >>> every.is_due(step=9, now=0.0), every.is_due(step=10, now=0.0), every.is_due(11, 0.0)
    (False, True, False)
    """

    steps: int | None = None
    seconds: float | None = None
    _passed: int = 0
    _acted: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("steps", self.steps), ("seconds", self.seconds)):
            if value is not None and value <= 0:
                raise ConfigurationError(f"Every({name}={value}): it must be more than 0, or None")

    def next_step(self, step: int) -> int | None:
        """The next step at which it is due, as far as steps decide it."""
        return None if self.steps is None else (step // self.steps + 1) * self.steps

    def start(self, step: int, now: float) -> None:
        """Count from here."""
        self._passed = step // self.steps if self.steps else 0
        self._acted = now

    def is_due(self, step: int, now: float) -> bool:
        """Whether to act now; asked again, no longer."""
        passed = step // self.steps if self.steps else 0
        if self._acted is None:
            self._acted = now
        is_late = self.seconds is not None and now - self._acted >= self.seconds
        if passed <= self._passed and not is_late:
            return False
        self._passed, self._acted = passed, now
        return True


class At:
    """At these steps, each once; a step that was passed in a group counts at the group's end.

    >>> at = At(10, 100)
    >>> at.next_step(10)
    100
    >>> at.is_due(step=9, now=0.0), at.is_due(step=12, now=0.0), at.is_due(step=13, now=0.0)
    (False, True, False)
    """

    def __init__(self, *steps: int) -> None:
        self._steps = sorted(steps)
        self._seen = 0

    def next_step(self, step: int) -> int | None:
        """The next of the steps."""
        return next((at for at in self._steps if at > step), None)

    def start(self, step: int, now: float) -> None:
        """Those before are over."""
        self._seen = step

    def is_due(self, step: int, now: float) -> bool:
        """Whether one of them was passed since this was last asked."""
        due = any(self._seen < at <= step for at in self._steps)
        self._seen = step
        return due


class PeriodicHook(Hook):
    """Acts whenever it is time to: give it a *when*, and override `act`.

    class Beep(hooks.PeriodicHook):
        def act(self, session):
            print(f"beep {session.step}")

    Beep(hooks.Every(steps=100))
    """

    def __init__(self, when: When) -> None:
        self.when = when

    def begin(self, session: Session) -> None:
        """Count from the restored step."""
        self.when.start(session.step, session.now)

    def due(self, step: int) -> int | None:
        """When the steps say."""
        return self.when.next_step(step)

    def after_step(self, session: Session) -> None:
        """Act, if it is time to."""
        if self.when.is_due(session.step, session.now):
            self.act(session)

    def act(self, session: Session) -> None:
        """What to do."""
        raise NotImplementedError
