"""How many steps to run before Python looks up again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class StepsPerCall:
    """Finds the number of steps that take about `target` seconds.

    >>> pace = StepsPerCall(target=0.2)
    >>> pace.steps
    1
    >>> pace.record(1, 3.0); pace.record(1, 0.01); pace.steps  # the first call is slow: it traces
    8
    """

    target: float = 0.2
    fixed: int | None = None
    limit: int = 1024
    _steps: float = 1.0
    _calls: int = 0

    @property
    def steps(self) -> int:
        """How many the next call should run."""
        return self.fixed or max(1, int(self._steps))

    def record(self, steps: int, seconds: float) -> None:
        """Learn from a call; grow slowly, so that one odd measurement does little harm."""
        self._calls += 1
        if self._calls > 1 and steps:
            ideal = self.target * steps / max(seconds, 1e-6)
            self._steps = max(1.0, min(ideal, self._steps * 8, float(self.limit)))
