"""How often, and how far, a run that diverges goes back to a checkpoint."""

from phalanx.errors import DivergenceError


class Rollbacks:
    """Counts the rollbacks of a run.

    The first one goes to the newest checkpoint. The loss shows only after some steps that a
    checkpoint was bad: if the run diverges again before it has saved another one, the next rollback
    passes over one checkpoint more.

    Args:
        limit: How many there may be.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.count = 0
        """How many rollbacks there were."""
        self._without_save = 0

    def note_saved(self) -> None:
        """Note that a checkpoint was written."""
        self._without_save = 0

    def begin(self, error: DivergenceError) -> int:
        """Count a rollback; return how many of the newest checkpoints to pass over.

        Raises:
            DivergenceError: There were too many.
        """
        if self.count >= self._limit:
            if not self.count:
                raise error
            raise DivergenceError(
                f"{error}. The run has gone back to a checkpoint {self.count} times, as often as "
                "max_rollbacks allows"
            ) from error
        self.count += 1
        self._without_save += 1
        return self._without_save - 1
