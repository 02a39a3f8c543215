"""What trainers spend the time of their steps on, measured inside of TensorFlow's functions.

Steps run in groups, inside of one function, so no Python code sees a batch or a weight arrive. The
function reads a clock when the tensors have arrived that end a part of the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.types import Tensor


@dataclass(frozen=True)
class StepTimes:
    """What a trainer has spent its time on so far, in seconds.

    Attributes:
        data: Waiting for batches.
        computing: Computing gradients, and on devices of its own also applying them.
        peers: Waiting for other trainers or the parameter servers, and for the transfers.
    """

    data: float = 0.0
    computing: float = 0.0
    peers: float = 0.0

    def __add__(self, other: StepTimes) -> StepTimes:
        return StepTimes(
            self.data + other.data, self.computing + other.computing, self.peers + other.peers
        )

    def __sub__(self, other: StepTimes) -> StepTimes:
        return StepTimes(
            self.data - other.data, self.computing - other.computing, self.peers - other.peers
        )

    @classmethod
    def split(cls, seconds: float, data: float, peers: float) -> StepTimes:
        """Return the times of steps that took so many seconds: the rest is computing.

        The clock of a host may be set meanwhile: no part is negative or longer than the whole.
        """
        data = min(max(0.0, data), max(0.0, seconds))
        peers = min(max(0.0, peers), max(0.0, seconds) - data)
        return cls(data, max(0.0, seconds - data - peers), peers)


@unconverted
def read_clock(*after: Any) -> Tensor:
    """Return the time at which all of these tensors, or structures of them, have their values.

    Tensors of another task would each need one more message: pass copies, made by `tf.identity`.
    A branch of a condition does not wait for tensors from outside of it: call this before it.
    """
    with tf.control_dependencies(tf.nest.flatten(after, expand_composites=True)):
        return tf.timestamp()
