"""Curves for TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from phalanx.train.hooks.base import PeriodicHook, When

if TYPE_CHECKING:
    from phalanx.train.loop.session import Session, Window


class SummaryHook(PeriodicHook):
    """Writes loss, metrics, learning rate and examples/s into the run's event files.

    `speed` gives the examples/s of the moment. `images`, if given, is called each time and returns
    pictures by name ([n, height, width, channels]), to look at the input or at what the model makes
    of it. `histograms` shows how each weight's numbers are spread; bringing them to the chief takes
    time, on parameter servers most.
    """

    def __init__(
        self,
        when: When,
        speed: Callable[[Session], float] | None = None,
        images: Callable[[], Mapping[str, Any]] | None = None,
        histograms: bool = False,
    ) -> None:
        super().__init__(when)
        self._speed = speed
        self._images = images
        self._histograms = histograms
        self._window: Window | None = None

    def begin(self, session: Session) -> None:
        """Count from the restored step; draw the model's graph."""
        super().begin(session)
        self._window = session.open_window()
        session.summaries.write_graph(session.model)

    def on_epoch(self, session: Session, values: Mapping[str, float]) -> None:
        """A point for the whole pass over the data."""
        named = {f"epoch/{name}": value for name, value in values.items()}
        session.summaries.write_scalars("train", session.step, named)

    def end(self, session: Session) -> None:
        """The last point of the curves."""
        self.act(session)

    def act(self, session: Session) -> None:
        """Write."""
        assert self._window is not None
        values = self._window.read()
        if not values:
            return
        rate = session.learning_rate
        if not math.isnan(rate):
            values["learning_rate"] = rate
        if self._speed is not None and (speed := self._speed(session)):
            values["examples_per_second"] = speed
        session.summaries.write_training(session.step, values)
        for name, pictures in (self._images() if self._images else {}).items():
            session.summaries.write_images("train", session.step, name, pictures)
        if self._histograms:
            session.pull()
            weights = {name: variable.numpy() for name, variable in session.variables.items()}
            session.summaries.write_histograms("train", session.step, weights)
