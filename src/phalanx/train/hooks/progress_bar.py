"""A bar for people who watch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from phalanx.train.hooks.base import Hook

if TYPE_CHECKING:
    from rich.progress import TaskID

    from phalanx.train.loop.session import Session


class ProgressBarHook(Hook):
    """Shows how far the run is, its loss and the time left; for terminals only."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._bar: TaskID | None = None

    def begin(self, session: Session) -> None:
        """Draw it."""
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.4f}"),
            TimeRemainingColumn(),
            transient=True,
        )
        self._bar = self._progress.add_task(
            "", total=session.limit, completed=session.step, loss=float("nan")
        )
        self._progress.start()

    def after_step(self, session: Session) -> None:
        """Move it."""
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, completed=session.step, loss=session.last_loss)

    def end(self, session: Session) -> None:
        """Take it away."""
        if self._progress is not None:
            self._progress.stop()

    def on_error(self, session: Session, error: BaseException) -> None:
        """Take it away, so that the error can be read."""
        self.end(session)
