"""How much of its shard each trainer has read, in training where they do not advance together.

A batch has a number that grows with each one that a trainer reads, and begins with how often the
data was opened. These are the rules, without a process or a network, so that a test can try made-up
histories of failures.
"""

import threading
from collections import Counter
from collections.abc import Sequence

_NUMBER_BITS = 32
# More batches than a trainer takes from a data service before it is lost.
_SERVED_BITS = 24


class ShardPositions:
    """The positions of all trainers in their shards.

    Args:
        trainers: How many trainers there are.
        is_served: Whether a data service gives each trainer the batches that nobody has had before.
            Trainers then have no shards: one that was lost skips nothing, and what it gets next has
            other numbers than before.

    Attributes:
        passes: How many passes over the data were completed.
        skips: How many batches of the next one each trainer had read when the data was opened.
    """

    def __init__(self, trainers: int, is_served: bool = False) -> None:
        self.is_served = is_served
        self.passes = 0
        self.skips: tuple[int, ...] = (0,) * trainers
        self._trainers = trainers
        self._openings = 0
        self._used: Counter[int] = Counter()
        self._lock = threading.Lock()

    @property
    def first_number(self) -> int:
        """The number of each trainer's first batch since the data was opened.

        It is larger than any number before, so a call from before that changes nothing any more.
        """
        return self._openings << _NUMBER_BITS

    def restore(self, passes: int, skip: int, saved: Sequence[int]) -> None:
        """Go on where a checkpoint was made.

        Args:
            passes: How many passes over the data were completed.
            skip: How many batches of the next one all trainers have read together.
            saved: What `save` returned, if the checkpoint has it; that of another number of
                trainers is of no use.
        """
        self.passes, self.skips = passes, (skip // self._trainers,) * self._trainers
        if len(saved) == self._trainers + 1:
            self.passes, self.skips = saved[0], tuple(saved[1:])

    def open(self) -> None:
        """Note that the data is opened behind what the trainers have read."""
        self._openings += 1
        with self._lock:
            self._used.clear()

    def rewind(self) -> None:
        """Begin the next pass."""
        self.passes += 1
        self.skips = (0,) * self._trainers

    def note_used(self, trainer: int, number: int) -> None:
        """Note that the updates before this number are known to be applied.

        It may be noted late, when the trainer was lost and has read the same batches again.
        """
        with self._lock:
            self._used[trainer] = max(self._used[trainer], number - self.first_number)

    def count_used(self, trainer: int) -> int:
        """Return the number, from the first one on, at which a trainer that was lost reads on.

        So many batches need not be read again.
        """
        with self._lock:
            if self.is_served:
                calls = self._used[trainer] >> _SERVED_BITS
                self._used[trainer] = (calls + 1) << _SERVED_BITS
            return self._used[trainer]

    def save(self, expected: Sequence[int]) -> tuple[int, ...]:
        """Return the positions for a checkpoint; nothing if a data service has them.

        Args:
            expected: The number that the next update of each trainer has. The update of a call
                whose result is lost is part of the weights as well.
        """
        if self.is_served:
            return ()
        applied = [max(0, number - self.first_number) for number in expected]
        return (self.passes, *(a + b for a, b in zip(self.skips, applied, strict=True)))
