"""The tokens with which the chief of synchronous training on ps tells its trainers what to do next.

A token is the number of an update, a request to evaluate, or the end of a pass over the data. Each
trainer has a queue of them, on the first parameter server.
"""

from collections.abc import Iterable

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.types import Tensor

STOP = -1
"""What `take` returns at the end of the pass."""
_EVALUATE = -2
_END_PASS = -(2**40)


class TrainerTokens:
    """The queues of all trainers.

    Args:
        trainers: How many trainers there are.
        device: The device of the queues.
    """

    def __init__(self, trainers: int, device: str) -> None:
        self._device = device
        with tf.device(device):
            self._queues = [tf.queue.FIFOQueue(2**20, [tf.int64], [[]]) for _ in range(trainers)]

    @unconverted
    def send_update(self, number: Tensor) -> None:
        """Ask all trainers for a contribution to an update; in a graph."""
        with tf.device(self._device):
            for queue in self._queues:
                queue.enqueue(number)

    def send(self, token: int, trainers: Iterable[int]) -> None:
        """Send a token to some trainers."""
        for trainer in trainers:
            self._queues[trainer].enqueue(tf.constant(token, tf.int64))

    def request_evaluation(self, number: int, trainers: Iterable[int]) -> None:
        """Ask trainers for an evaluation."""
        self.send(_EVALUATE - number, trainers)

    def end_pass(self, number: int, trainers: Iterable[int]) -> None:
        """Tell trainers that a pass is over. Those of later passes ignore it."""
        self.send(_END_PASS - number, trainers)

    def handle(self, trainer: int) -> Tensor:
        """Return the queue of a trainer, for `take`."""
        return self._queues[trainer].queue_ref

    @unconverted
    def take(self, handle: Tensor, number_of_pass: Tensor) -> tuple[Tensor, Tensor]:
        """Wait for a token; a straggler, for which several are waiting, takes the newest update.

        Returns the number of the update, and that of the newest evaluation that was requested. If
        there is no update, its number is negative: STOP at the end of the pass, or of a later one.
        If there is no evaluation, its number is negative, too.

        Args:
            handle: The queue of the trainer. The graph does not have those of the others.
            number_of_pass: The pass over the data.
        """
        with tf.device(self._device):
            size = tf.raw_ops.QueueSizeV2(handle=handle)
            (taken,) = tf.raw_ops.QueueDequeueManyV2(
                handle=handle, n=tf.maximum(size, 1), component_types=[tf.int64]
            )
            stops = tf.reduce_any(taken <= _END_PASS - number_of_pass)
            newest = tf.where(stops, tf.constant(STOP, tf.int64), tf.reduce_max(taken))
            # An update and the end of a pass are no evaluation.
            requests = tf.where(taken > _END_PASS, _EVALUATE - taken, -1)
            return newest, tf.reduce_max(requests)
