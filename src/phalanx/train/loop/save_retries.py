"""Saves that fail, because the disk is full or read-only, are retried while training goes on."""

import logging
import time
from collections.abc import Callable

from phalanx.errors import SaveError

LOG = logging.getLogger("phalanx")

RETRY_SECONDS = 15.0
_SLEEP_SECONDS = 0.5


class SaveRetries:
    """Counts the time since the first save that failed, and says when to try again.

    Args:
        limit_seconds: How long saves may fail before the run does.
        clock: Returns the time in seconds.
        sleep: Waits for so many seconds.
    """

    def __init__(
        self,
        limit_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._limit = limit_seconds
        self._clock = clock
        self._sleep = sleep
        self._failing_since: float | None = None
        self._next_try = 0.0
        self._error: SaveError | None = None

    def is_due(self) -> bool:
        """Whether a save has failed, and it is time to try again."""
        return self._failing_since is not None and self._clock() >= self._next_try

    def wait(self, is_asked_to_stop: Callable[[], bool]) -> None:
        """Wait until the next try; raise the error of the last one if the run is asked to stop."""
        while not self.is_due():
            if is_asked_to_stop() and self._error is not None:
                raise self._error
            self._sleep(_SLEEP_SECONDS)

    @property
    def is_failing(self) -> bool:
        return self._failing_since is not None

    def succeed(self) -> None:
        if self._failing_since is not None:
            LOG.warning("checkpoints can be written again")
        self._failing_since = self._error = None

    def fail(self, error: SaveError, step: int) -> None:
        """Log an error, and raise it when saves have failed for too long.

        Raises:
            SaveError: The limit has passed.
        """
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
        left = self._failing_since + self._limit - now
        if left <= 0:
            raise SaveError(
                f"no checkpoint could be written for {self._limit:.0f} s, the limit that "
                f"save_retry_seconds sets: {error}"
            ) from error
        self._error = error
        self._next_try = now + min(RETRY_SECONDS, left)
        LOG.error(
            "step %d is not saved: %s. Training goes on; the next try is in %.0f s, and the run "
            "fails in %.0f s unless one succeeds",
            step, error, min(RETRY_SECONDS, left), left,
        )  # fmt: skip
