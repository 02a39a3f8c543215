"""What a session knows of an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from phalanx.train.variables.device_variables import DeviceVariables


@dataclass(frozen=True)
class Progress:
    """What one call brought: updates made, the sum of their reports, whether the data ended."""

    steps: int
    report: np.ndarray[Any, Any]
    ended: bool = False
    passes: int = 1


class Engine(Protocol):
    """Runs steps. A session drives it; it knows nothing of hooks, files or when to stop."""

    weights: DeviceVariables

    def begin(self, step: int, skip: int) -> None:
        """Send the model's variables to where they are trained; open the data, some batches in."""

    def advance(self, step: int, due: int, limit: int) -> Progress:
        """Go on from `step`, at most to `due` (async: a little more), never past `limit`."""

    def rewind(self) -> None:
        """Open the data again from its start."""

    def settle(self) -> Progress | None:
        """Let steps that are under way end; those that were not yet told of."""

    def pull(self) -> Progress | None:
        """Settle, and bring the weights, and all that belongs to them, to the model's variables."""

    def evaluate(self, limit: int | None, notify: Callable[[int], None]) -> Any:
        """The sum of the reports of the whole evaluation set; `notify` is told of each batch."""

    def is_interrupted(self) -> bool:
        """Whether another task was asked to end (SIGTERM)."""

    def finish(self, error: BaseException | None) -> None:
        """Tell all other tasks that the run is over, and why."""
