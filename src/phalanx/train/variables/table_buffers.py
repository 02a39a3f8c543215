"""Which buffers hold each described variable, its slots, and the index of a growing table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import keras

from phalanx.train.autograph import unconverted
from phalanx.train.types import KerasVariable, TFVariable
from phalanx.train.variables.described_variable import DescribedVariable
from phalanx.train.variables.flat_layout import FlatLayout
from phalanx.train.variables.host_variables import HostVariables
from phalanx.train.variables.index_shard import IndexShard
from phalanx.train.variables.row_optimizer import RowOptimizer
from phalanx.train.variables.store import VariableStore
from phalanx.train.variables.table import Table
from phalanx.train.variables.table_index import TableIndex


@dataclass(frozen=True)
class TableBuffers:
    """Finds the buffers of described variables, by their position among the weights of the host."""

    host_variables: HostVariables
    layout: FlatLayout
    stores: Sequence[VariableStore]

    def attach(self) -> None:
        """Let the variables of the host know the buffers in which they are trained."""
        for variable, shards, is_filled in self.described():
            variable.attach(shards, is_filled)
        self._attach_changes()
        for index, parts in self.indexes():
            index.attach(parts)

    def move(self) -> None:
        """Let the variables of the host know these buffers, which have their rows already."""
        for variable, shards, _ in self.described():
            variable.move(shards)
        self._attach_changes()
        for index, parts in self.indexes():
            index.attach(parts)

    def described(self) -> Iterator[tuple[DescribedVariable, list[TFVariable], bool]]:
        """Yield each described variable with its buffers, and whether they are filled."""
        weights = self.host_variables.trainable
        by_store = [dict(enumerate(store.weights)) for store in self.stores]
        for position, weight in enumerate(weights):
            if isinstance(weight, DescribedVariable):
                yield weight, self._find_buffers(position, by_store), False
        for name, slots in self.host_variables.slots.by_name.items():
            by_store = [store.slots.by_name.get(name, {}) for store in self.stores]
            for position, slot in slots.items():
                if isinstance(slot, DescribedVariable):
                    yield slot, self._find_buffers(position, by_store), True
        for index, parts in self.indexes():
            for table, name in zip(index.split_tables, ("ids", "counts", "seen"), strict=True):
                yield table, [getattr(part, name) for part in parts], True

    def indexes(self) -> Iterator[tuple[TableIndex, list[IndexShard]]]:
        """Yield each index with its shards, in the order of the buckets."""
        shards = self.index_shards()
        for index in self.host_variables.indexes():
            mine = [
                shard
                for number, shard in shards.items()
                if getattr(self._find_weight(number), "index", None) is index
            ]
            yield index, mine

    @unconverted
    def index_shards(self) -> dict[int, IndexShard]:
        """Return the indexes of growing tables, by the number of their buffer."""
        found: dict[int, IndexShard] = {}
        for number, store in enumerate(self.stores):
            in_store = self.layout.in_store(number)
            found |= {in_store[position]: shard for position, shard in store.indexes.items()}
        return dict(sorted(found.items()))

    def _attach_changes(self) -> None:
        """Let tables know what notes their changes, and what keeps rows; slots share it."""
        by_name = self.host_variables.slots.by_name.values()
        for position, weight in enumerate(self.host_variables.trainable):
            if isinstance(weight, Table):
                optimizers = self._find_row_optimizers(position)
                changes = [each.changed for each in optimizers if each.changed is not None]
                snapshots = [each.snapshot for each in optimizers if each.snapshot is not None]
                for table in (weight, *(slots[position] for slots in by_name if position in slots)):
                    table.changes, table.snapshots = tuple(changes), tuple(snapshots)
        for index, parts in self.indexes():
            noted = tuple(part.changed for part in parts if part.changed is not None)
            for table in index.split_tables:
                table.changes = noted

    def _find_row_optimizers(self, weight: int) -> list[RowOptimizer]:
        """Return the row optimizers of a table, in the order of its buffers."""
        group = self.layout.groups.index((weight,))
        places = [
            (buffer.store, self.layout.in_store(buffer.store).index(index))
            for index, buffer in enumerate(self.layout.buffers)
            if buffer.group == group
        ]
        by_store = [store.row_optimizers for store in self.stores]
        return [by_store[s][position] for s, position in places if position in by_store[s]]

    def _find_buffers(
        self, weight: int, by_store: Sequence[Mapping[int, KerasVariable]]
    ) -> list[TFVariable]:
        """Return the buffers of a weight that has its own, or those of its slot, in order."""
        group = self.layout.groups.index((weight,))
        found = []
        for index, buffer in enumerate(self.layout.buffers):
            if buffer.group == group:
                position = self.layout.in_store(buffer.store).index(index)
                variable = by_store[buffer.store][position]
                is_keras = isinstance(variable, keras.Variable)
                found.append(variable.value if is_keras else variable)
        return found

    def _find_weight(self, number: int) -> KerasVariable:
        """Return the first weight of the host in a buffer."""
        return self.host_variables.trainable[
            self.layout.groups[self.layout.buffers[number].group][0]
        ]
