"""The model's variables on the host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from phalanx.train.variables.store import OptimizerSlots, build_optimizer


@dataclass
class HostVariables:
    """The model's own variables on the host: what is saved, restored and exported."""

    trainable: list[Any]
    state: list[Any]
    optimizer: Any
    slots: OptimizerSlots = field(default_factory=OptimizerSlots)

    def build(self) -> None:
        """Make the optimizer's variables."""
        self.slots = build_optimizer(self.optimizer, self.trainable)
