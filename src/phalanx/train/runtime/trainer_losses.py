"""Which trainers have lost the workers that ran their calls, in synchronous training on ps."""

from collections.abc import Callable

import tensorflow as tf

from phalanx.errors import PeerError
from phalanx.train.autograph import unconverted
from phalanx.train.runtime.ps_cluster import ParameterServerCluster
from phalanx.train.types import RemoteValue, Tensor


class TrainerLosses:
    """Notices when the call of a trainer loses its worker, and when another worker takes it over.

    Args:
        ps_cluster: The cluster, whose coordinator runs one call for each trainer.
        required: How many trainers an update needs; the others are backups.
        count_steps: Returns how many steps are completed.
    """

    def __init__(
        self, ps_cluster: ParameterServerCluster, required: int, count_steps: Callable[[], int]
    ) -> None:
        self._ps_cluster = ps_cluster
        self._required = required
        self._count_steps = count_steps
        self._calls: dict[RemoteValue, int] = {}
        # The trainers that have lost their workers, and the steps that were completed then.
        self._losses: dict[int, int] = {}
        self._has_lost_idle_worker = False
        with tf.device(ps_cluster.devices[0]):
            zeros = tf.zeros([len(ps_cluster.trainers)], tf.int32)
            self._serving = tf.Variable(zeros, trainable=False)
        ps_cluster.watch_workers(self._note_call, self._note_worker)

    def begin_calls(self) -> None:
        """Forget the calls of an earlier pass over the data."""
        self._calls = {}
        self._serving.assign(tf.zeros_like(self._serving))

    def add_call(self, value: RemoteValue, trainer: int) -> None:
        """Watch the call of a trainer."""
        self._calls[value] = trainer

    @unconverted
    def take_over(self, trainer: Tensor) -> Tensor:
        """Note, in the graph of a call, that a worker runs it; return zero."""
        self._serving.scatter_nd_update([[trainer]], [1])
        return tf.constant(0)

    @property
    def has_any(self) -> bool:
        """Whether a worker was ever lost, and may have taken tokens with it."""
        return bool(self._losses) or self._has_lost_idle_worker

    def is_missing(self, trainer: int) -> bool:
        """Whether no worker runs the call of a trainer, after a loss."""
        return self.has_any and not bool(self._serving.numpy()[trainer])

    def find_missing(self) -> list[int]:
        """Return the trainers whose calls no worker will run before a lost one is back.

        Raises:
            PeerError: Too few trainers are left for the next update.
        """
        waiting = [
            number for number in range(len(self._ps_cluster.trainers)) if self.is_missing(number)
        ]
        if len(self._ps_cluster.find_lost_workers()) < len(waiting):
            # A worker that is there may only be late to begin its call.
            return []
        self._check(len(waiting))
        return waiting

    def check(self) -> None:
        """Raise a PeerError if too few trainers are left for the next update.

        Without backups every loss is one too many, even if another worker has taken the call over:
        the position in its data is lost.
        """
        if self._required == len(self._ps_cluster.trainers):
            missing = int(self.has_any)
        else:
            losses, completed = list(self._losses.items()), self._count_steps()
            missing = sum(step >= completed or self.is_missing(each) for each, step in losses)
        self._check(missing)

    def _check(self, missing: int) -> None:
        completed, trainers = self._count_steps(), len(self._ps_cluster.trainers)
        if missing > trainers - self._required:
            lost = ", ".join(map(str, self._ps_cluster.find_lost_workers())) or "a worker"
            raise PeerError(
                f"a peer stopped responding: {lost} was lost at step {completed}, and an update "
                f"needs {self._required} of {trainers} trainers"
            )

    def _note_worker(self) -> None:
        # Its call waits in the coordinator's queue.
        self._has_lost_idle_worker = True

    def _note_call(self, value: RemoteValue) -> None:
        trainer = self._calls.get(value)
        if trainer is not None:
            self._serving.scatter_nd_update([[trainer]], [0])
            self._losses[trainer] = self._count_steps()
