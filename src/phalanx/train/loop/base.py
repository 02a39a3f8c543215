"""What a session needs of its checkpoints, and of its evaluation."""

from typing import Protocol

from phalanx.train.engines.base import Notify
from phalanx.train.loop.position import Position


class Evaluate(Protocol):
    """Evaluates the current weights, as those of a step."""

    def __call__(
        self, step: int, notify: Notify, batches_per_call: int | None
    ) -> dict[str, float]: ...


class EvaluationAbandoned(Exception):  # noqa: N818 - it is no error
    """The run was asked to stop during an evaluation, which would delay the last checkpoint."""


class SessionCheckpoints(Protocol):
    """The checkpoints and the status that a session writes."""

    @property
    def directory(self) -> str: ...

    @property
    def latest(self) -> str | None:
        """The path of the newest checkpoint, if there is one."""

    def restore(self, pass_over: int = 0) -> tuple[int, Position]:
        """Read the newest checkpoint, if there is one; return its step and position.

        Args:
            pass_over: How many of the newest checkpoints not to use, nor ever again, if there are
                others.

        Raises:
            CheckpointError: None of them can be read.
        """

    def save(self, step: int, position: Position) -> str | None:
        """Write a checkpoint; return its path, or None if the background writes it."""

    def finish_save(self, waits: bool) -> str | None:
        """Return the path of a checkpoint that the background has written since the last call."""

    def heartbeat(self, step: int, now: float) -> None:
        """Write a heartbeat, if one is due."""

    def mark_done(self, step: int) -> None: ...

    def mark_failed(self, error: BaseException) -> None: ...
