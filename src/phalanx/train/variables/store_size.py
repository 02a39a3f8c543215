"""How many bytes of the model one parameter server holds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from phalanx.train.types import KerasVariable
from phalanx.train.variables import row_transfer
from phalanx.train.variables.described_variable import DescribedVariable
from phalanx.train.variables.flat_layout import FlatLayout
from phalanx.train.variables.host_variables import HostVariables
from phalanx.train.variables.store import plan_state, plan_weights
from phalanx.train.variables.table import Table


def count_bytes(*variables: KerasVariable) -> int:
    """Return the bytes of variables, which need not exist yet."""
    return sum(math.prod(v.shape) * int(tf.as_dtype(v.dtype).size) for v in variables)


@dataclass(frozen=True)
class StoreSize:
    """The number of buffers in a store, and the bytes of what is in them."""

    buffers: int
    dense: int
    tables: int
    """The rows of sparse tables, and the indexes of growing ones."""
    slots: int
    state: int
    large: int
    """The described variables, and their slots, that the store saves itself."""
    copied: int
    """The part of them that a save in the background copies, since no `RowSnapshot` keeps it."""

    @property
    def total(self) -> int:
        return self.dense + self.tables + self.slots + self.state


def measure_stores(host_variables: HostVariables, stores: int) -> list[StoreSize]:
    """Return the sizes of the stores that a model will have."""
    layout = plan_weights(
        host_variables.trainable, host_variables.optimizer, stores, host_variables.disconnected,
        host_variables.looked_up, own=host_variables.own_optimizers(),
        limit=row_transfer.CHUNK_BYTES,
    )  # fmt: skip
    states = plan_state(
        host_variables.state, stores, host_variables.fixed, row_transfer.CHUNK_BYTES
    )
    return [_measure(host_variables, layout, states, store) for store in range(stores)]


def add_replicas(sizes: Sequence[int], replicas: int) -> list[int]:
    """Return what each parameter server holds if the next ones have copies of its buffers.

    >>> add_replicas([1, 10, 100], 2)
    [101, 11, 110]
    """
    count = len(sizes)
    return [sum(sizes[(n - shift) % count] for shift in range(replicas)) for n in range(count)]


def _measure(
    host_variables: HostVariables, layout: FlatLayout, states: FlatLayout, store: int
) -> StoreSize:
    slots: Counter[int] = Counter()
    large: Counter[int] = Counter()
    copied: Counter[int] = Counter()
    for by_position in host_variables.slots.by_name.values():
        for position, slot in by_position.items():
            slots[position] += count_bytes(slot)
    for position, weight in enumerate(host_variables.trainable):
        if isinstance(weight, DescribedVariable) and weight.is_large:
            large[position] = weight.nbytes + slots[position]
            by_rows = isinstance(weight, Table) and layout.specs[position].split
            copied[position] = 0 if by_rows else large[position]
        if isinstance(weight, Table) and weight.index is not None:
            of_index = sum(t.nbytes for t in weight.index.tables if t.is_large)
            large[position] += of_index
            copied[position] += of_index
    dense = tables = 0
    slot_bytes = large_bytes = copied_bytes = 0.0
    for index in layout.in_store(store):
        buffer = layout.buffers[index]
        group = layout.groups[buffer.group]
        part = buffer.size / max(1, sum(layout.specs[i].size for i in group))
        table = host_variables.trainable[group[0]]
        if isinstance(table, Table):
            tables += buffer.nbytes
            if table.index is not None:
                tables += table.index.count_bytes(buffer.shape[0])
        else:
            dense += buffer.nbytes
        slot_bytes += part * sum(slots[i] for i in group)
        large_bytes += part * sum(large[i] for i in group)
        copied_bytes += part * sum(copied[i] for i in group)
    state = sum(states.buffers[index].nbytes for index in states.in_store(store))
    count = len(layout.in_store(store)) + len(states.in_store(store))
    return StoreSize(
        count, dense, tables, int(slot_bytes), state, int(large_bytes), int(copied_bytes)
    )
