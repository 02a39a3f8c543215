"""How replicas exchange gradients by all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.config import RunConfig


@dataclass(frozen=True)
class Communication:
    """The settings of all-reduce, and how they apply to the gradients of an update."""

    implementation: str | None = None
    bytes_per_pack: int | None = None
    seconds: float | None = None
    compress: str | None = None
    examples: int = 1
    """The examples of an update: gradients are sums over them, which half precision may not hold.
    """

    @classmethod
    def of_config(cls, config: RunConfig, examples: int) -> Communication:
        """Return the settings of a run; its updates have so many examples."""
        if config.communication == "nccl" and not tf.config.list_logical_devices("GPU"):
            raise ConfigurationError(
                "communication is 'nccl', which exchanges tensors between GPUs, but this host has "
                "no GPU that TensorFlow can use: take 'ring', or leave it out"
            )
        return cls(
            config.communication,
            config.bytes_per_pack,
            config.collective_seconds,
            config.compress,
            examples,
        )

    @property
    def options(self) -> tf.distribute.experimental.CommunicationOptions:
        """The options of TensorFlow's collective operations."""
        implementations = tf.distribute.experimental.CommunicationImplementation
        return tf.distribute.experimental.CommunicationOptions(
            timeout_seconds=self.seconds,
            implementation=implementations[(self.implementation or "auto").upper()],
        )

    @property
    def splits_gradients(self) -> bool:
        """Whether gradients travel apart from what an update sums beside them."""
        return self.compress is not None or self.bytes_per_pack is not None

    def split(self, sizes: Sequence[int]) -> list[slice]:
        """Return which gradients travel together, from their bytes: those of a pack, or all."""
        bounds, pending = [0], 0
        for number, size in enumerate(sizes, 1):
            pending += size
            if self.bytes_per_pack is not None and pending >= self.bytes_per_pack:
                bounds.append(number)
                pending = 0
        if bounds[-1] < len(sizes):
            bounds.append(len(sizes))
        return [slice(begin, end) for begin, end in pairwise(bounds)]
