"""Integer and boolean state on its way to synchronous parameter servers, which sum only floats."""

from collections.abc import Sequence

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.types import Tensor
from phalanx.train.variables.flat_layout import Buffer


class StateQueue:
    """Collects the new state of each trainer; an update takes that of one trainer, exactly.

    A trainer enqueues its state before it adds to the sums of gradients, so that the state is there
    when the sums are taken.
    """

    def __init__(self, buffers: Sequence[Buffer], device: str) -> None:
        self._shapes = [buffer.shape for buffer in buffers]
        self._types = [tf.as_dtype(buffer.dtype) for buffer in buffers]
        with tf.device(device):
            self._queue = tf.queue.FIFOQueue(
                2**20, [tf.int64, tf.int32, *self._types], [[], [], *self._shapes]
            )

    @unconverted
    def add(self, trainer: Tensor, token: Tensor, values: Sequence[Tensor]) -> list[Tensor]:
        """Enqueue the state of a trainer; return the operations."""
        return [self._queue.enqueue([token, trainer, *values])] if self._types else []

    @unconverted
    def take(self, token: Tensor, counted: Tensor) -> list[Tensor]:
        """Return the state that the first of the counted trainers added for a token.

        The state of the other trainers, and of older tokens, is dropped.
        """
        if not self._types:
            return []

        def take_one(first: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
            entry_token, trainer, *values = self._queue.dequeue()
            is_wanted = (entry_token == token) & (counted[trainer] > 0) & (trainer < first)
            pairs = zip([trainer, *values], [first, *state], strict=True)
            return tuple(tf.where(is_wanted, new, old) for new, old in pairs)

        zeros = [tf.zeros(s, t) for s, t in zip(self._shapes, self._types, strict=True)]
        taken = tf.while_loop(
            lambda *_: self._queue.size() > 0, take_one, (tf.size(counted), *zeros),
            parallel_iterations=1,
        )  # fmt: skip
        return list(taken[1:])
