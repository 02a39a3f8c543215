"""Curves for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from phalanx.train.hooks.base import Every, Hook

if TYPE_CHECKING:
    from phalanx.train.hooks.examples_per_second import ExamplesPerSecond
    from phalanx.train.session import Session, Window


class SummarySaver(Hook):
    """Writes loss, metrics, learning rate and examples/s into the run's event files.

    `images`, if given, is called each time and returns pictures by name ([n, height, width,
    channels]), to look at the input or at what the model makes of it.
    """

    def __init__(
        self,
        every: Every,
        speed: ExamplesPerSecond | None = None,
        images: Callable[[], Mapping[str, Any]] | None = None,
    ) -> None:
        self.every = every
        self._speed = speed
        self._images = images
        self._window: Window | None = None

    def begin(self, session: Session) -> None:
        """Count from the restored step; draw the model's graph."""
        self.every.start(session.step, session.now)
        self._window = session.open_window()
        session.summaries.write_graph(session.model)

    def due(self, step: int) -> int | None:
        """When the steps say."""
        return self.every.next_step(step)

    def after_step(self, session: Session) -> None:
        """Write."""
        if self.every.is_due(session.step, session.now):
            self._write(session)

    def end(self, session: Session) -> None:
        """The last point of the curves."""
        self._write(session)

    def _write(self, session: Session) -> None:
        assert self._window is not None
        values = self._window.read()
        if not values:
            return
        values["learning_rate"] = session.learning_rate
        if self._speed is not None:
            self._speed.measure(session)
            if self._speed.current:
                values["examples_per_second"] = self._speed.current
        session.summaries.write_scalars("train", session.step, values)
        for name, pictures in (self._images() if self._images else {}).items():
            session.summaries.write_images("train", session.step, name, pictures)
