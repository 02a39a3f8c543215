"""Table: a variable that steps read and update by rows only."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import keras

from phalanx.train.types import Optimizer
from phalanx.train.variables.described_variable import DescribedVariable

if TYPE_CHECKING:
    from phalanx.train.variables.table_index import TableIndex


class Keys(IntEnum):
    """What finds the rows of a table. Checkpoints have these numbers."""

    INDICES = 0
    HASHES = 1
    IDS = 2

    def describe(self) -> str:
        return ("indices", "hashed inputs", "ids that get rows when they are seen")[self]


class Table(DescribedVariable):
    """The rows of a sparse table, or a slot of an optimizer for such rows."""

    def __init__(
        self,
        shape: Sequence[int],
        initializer: Any,
        dtype: str,
        name: str,
        trainable: bool = True,
    ) -> None:
        self.optimizer: Optimizer | None = None
        """The optimizer of this table alone, if it has one."""
        self.keys = Keys.INDICES
        self.index: TableIndex | None = None
        """Which id has which row, if it is a growing table."""
        self.is_index = False
        """Whether it is a part of the index of a growing table: no step has it as state."""
        self.average_step: Table | None = None
        """A slot for each row: after which step its moving average was computed last."""
        super().__init__(shape, initializer, dtype, name, trainable)

    def make_average_step(self) -> Table:
        """Describe the slot `average_step`."""
        name = f"{self.path.replace('/', '_')}_average_step"
        zeros = keras.initializers.Zeros()
        step = Table((int(self.shape[0]), 1), zeros, "int64", name, trainable=False)
        step.in_ranges, step.tracks_changes = self.in_ranges, self.tracks_changes
        return step
