"""How many steps TensorFlow runs before control returns to Python."""

from dataclasses import dataclass


@dataclass
class StepsPerCall:
    """Finds the number of steps that take about `target` seconds.

    >>> steps_per_call = StepsPerCall(target=0.2)
    >>> steps_per_call.steps
    1
    >>> steps_per_call.record(1, 3.0)  # The first call does not count, because it traces.
    >>> steps_per_call.record(1, 0.01)
    >>> steps_per_call.steps
    8
    """

    target: float = 0.2
    fixed: int | None = None
    limit: int = 1024
    _steps: float = 1.0
    _calls: int = 0

    @property
    def steps(self) -> int:
        return self.fixed or max(1, int(self._steps))

    def record(self, steps: int, seconds: float) -> None:
        """Adjust to the duration of a call. Growth is limited, so that one outlier does no harm."""
        self._calls += 1
        if self._calls > 1 and steps:
            ideal = self.target * steps / max(seconds, 1e-6)
            self._steps = max(1.0, min(ideal, self._steps * 8, float(self.limit)))
