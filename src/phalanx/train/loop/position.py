"""How much of the training data a run has read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from phalanx.train.types import Array


@dataclass
class Position:
    """How much of the training data a run has read, so that a restarted run continues there."""

    epoch: int = 0
    batches: int = 0
    examples: int = 0
    totals: Array = field(default_factory=lambda: np.zeros([0]))
    """The sum of the reports of the current epoch; empty before its first step."""
    shards: tuple[int, ...] = ()
    """What each trainer has read, from `Engine.read_shards`, when the checkpoint was made."""

    def count(self, steps: int, report: Array) -> None:
        """Add steps and the sum of their reports."""
        self.batches += steps
        self.examples += round(float(report[0]))
        self.totals = report + (self.totals if len(self.totals) else 0.0)

    def end_epoch(self, passes: int) -> None:
        """Go on with the next epoch, after so many passes over the data."""
        self.epoch += passes
        self.batches = 0
        self.totals = np.zeros([0])

    def count_read(
        self, initial_epoch: int, steps_per_epoch: int | None, steps_per_pass: int | None
    ) -> tuple[int, int]:
        """Return how many passes over the data have been read, and how many batches since then.

        Args:
            initial_epoch: The number of the run's first epoch.
            steps_per_epoch: After how many steps an epoch ends; None if it ends with the data.
            steps_per_pass: How many steps a pass over the data has, if that is known.
        """
        epochs = self.epoch - initial_epoch
        if steps_per_epoch is None:
            return epochs, self.batches
        if steps_per_pass is None:
            return 0, epochs * steps_per_epoch + self.batches
        passes = read = 0
        for steps in [*[steps_per_epoch] * epochs, self.batches]:
            if read >= steps_per_pass and steps:
                passes, read = passes + 1, 0
            # An epoch ends early when the data does.
            read += steps
            if read > steps_per_pass:
                passes, read = passes + 1, 0
        return passes, read
