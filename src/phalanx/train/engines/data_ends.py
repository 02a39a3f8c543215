"""Which trainers have read all of their data, in synchronous training on ps with backup workers."""

from collections.abc import Iterable

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.engines.lock import Lock
from phalanx.train.types import Tensor

_HAS_DATA = 0
_LOST = -1


class DataEnds:
    """Decides which trainers without data stand in, with zeros, for gradients that are missing.

    An update needs a number of gradients, and an update of zeros alone means that all data has
    ended. Hence the first trainers that end, as many as there are backups, add nothing; each later
    one adds zeros. A lost trainer cannot add anything: it counts as one that ended first.

    Args:
        trainers: How many trainers there are.
        backups: How many of them an update does not need.
        device: The device of the notes.
    """

    def __init__(self, trainers: int, backups: int, device: str) -> None:
        self._backups = backups
        self._device = device
        with tf.device(device):
            # 1 for the trainer whose data ended first, 2 for the next one.
            self._ends = tf.Variable(tf.fill([trainers], _HAS_DATA), trainable=False)
            self._lock = Lock()
        self._mark = tf.function(self._mark_locked)

    def begin_pass(self) -> None:
        """Note that every trainer has data."""
        self._ends.assign(tf.fill(self._ends.shape, _HAS_DATA))

    @unconverted
    def begin_call(self, trainer: Tensor) -> None:
        """Note, in the graph of a trainer's call, that it reads its data from the beginning."""
        if self._backups:
            self._mark_locked(trainer, tf.constant(_HAS_DATA))

    def leave_out(self, trainers: Iterable[int]) -> None:
        """Note that no worker runs the calls of these trainers."""
        for trainer in trainers:
            self._mark(tf.constant(trainer), tf.constant(_LOST))

    def find_ended(self) -> list[int]:
        """Return the trainers that have read all of their data, and are not lost."""
        return [trainer for trainer, end in enumerate(self._ends.numpy()) if end > 0]

    @unconverted
    def is_needed(self, trainer: Tensor) -> Tensor:
        """Whether a trainer that is without data must add zeros; in the graph of its call."""
        if not self._backups:
            return tf.constant(True)

        def note_end() -> list[Tensor]:
            ends = self._ends.read_value()
            # A trainer comes here with every token after the end of its data.
            end = tf.where(ends[trainer] > 0, ends[trainer], tf.reduce_max(ends) + 1)
            ends = tf.tensor_scatter_nd_update(ends, [[trainer]], [end])
            self._ends.assign(ends)
            return [tf.math.count_nonzero((ends != _HAS_DATA) & (ends <= end))]

        with tf.device(self._device):
            return self._lock.run(note_end)[0] > self._backups

    @unconverted
    def _mark_locked(self, trainer: Tensor, mark: Tensor) -> Tensor:
        def note() -> list[Tensor]:
            ends = self._ends.read_value()
            self._ends.assign(tf.tensor_scatter_nd_update(ends, [[trainer]], [mark]))
            return [mark]

        with tf.device(self._device):
            return self._lock.run(note)[0]
