"""A model's weights, state and optimizer, wherever their buffers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.train.variables.flat_layout import FlatLayout, Tensor
from phalanx.train.variables.host_variables import HostVariables
from phalanx.train.variables.sparse_tables import Lookups, is_table
from phalanx.train.variables.store import (
    VariableStore,
    clip,
    make_stores,
    plan_state,
    plan_weights,
)


@dataclass(frozen=True, eq=False)
class DeviceVariables:
    """The buffers that are trained: on one device, or spread over several parameter servers."""

    host_variables: HostVariables
    packing: FlatLayout
    state_packing: FlatLayout
    stores: list[VariableStore]
    limits: Mapping[str, float | None]

    @classmethod
    def place(
        cls,
        host_variables: HostVariables,
        devices: Sequence[str],
        limits: Mapping[str, float | None],
    ) -> DeviceVariables:
        """Spread the buffers evenly over the devices."""
        packing = plan_weights(host_variables.trainable, host_variables.optimizer, len(devices))
        state = plan_state(host_variables.state, len(devices))
        stores = make_stores(
            devices, packing, state, host_variables.optimizer, host_variables.trainable
        )
        return cls(host_variables, packing, state, stores, limits)

    def read(self) -> list[Tensor]:
        """The weights' buffers."""
        return self.in_order(self.packing, [[w.value for w in s.weights] for s in self.stores])

    def read_whole(self) -> list[Tensor]:
        """The buffers as they are now, but for those that are looked up."""
        tables = self.table_pieces()
        return [tf.convert_to_tensor(b) for n, b in enumerate(self.read()) if n not in tables]

    def add_tables(self, whole: Sequence[Tensor]) -> list[Tensor]:
        """All buffers, from those that are read whole."""
        left, tables = iter(whole), self.table_pieces()
        return [b if n in tables else next(left) for n, b in enumerate(self.read())]

    def order_whole(self, by_store: Sequence[Sequence[Any]]) -> list[Any]:
        """What is read whole, from lists by store to the order of the pieces."""
        iterators, tables = [iter(values) for values in by_store], self.table_pieces()
        pieces = enumerate(self.packing.pieces)
        return [next(iterators[piece.store]) for number, piece in pieces if number not in tables]

    def table_pieces(self) -> dict[int, int]:
        """The pieces that are looked up and never read whole, and the weight each is a part of."""
        weights = [self.packing.groups[piece.group][0] for piece in self.packing.pieces]
        return {
            number: weight
            for number, weight in enumerate(weights)
            if is_table(self.host_variables.trainable[weight])
        }

    def whole_bytes(self) -> int:
        """How many bytes are read whole for each step."""
        tables = self.table_pieces()
        return sum(p.nbytes for number, p in enumerate(self.packing.pieces) if number not in tables)

    def prepare_lookups(self, pieces: Sequence[Tensor], tape: Any = None) -> Lookups:
        """What the layers of a step look up rows with."""
        shards: dict[int, list[tuple[int, Any]]] = {}
        for number, weight in self.table_pieces().items():
            variable = self.host_variables.trainable[weight]
            shards.setdefault(id(variable), []).append((number, pieces[number]))
        is_remote = any("/job:ps" in store.device for store in self.stores)
        return Lookups(shards, is_remote, tape)

    def read_state(self) -> list[Tensor]:
        """The state's buffers."""
        return self.in_order(
            self.state_packing, [[v.read_value() for v in s.state] for s in self.stores]
        )

    def apply(self, gradients: Sequence[Tensor]) -> None:
        """One update of all weights by their buffers' gradients, clipped if so asked."""
        clipped = clip(gradients, self.packing, self._scaled_limits())
        for number in range(len(self.stores)):
            self.apply_in(number, clipped)

    def scale_loss(self, loss: Tensor) -> Tensor:
        """What gradients are taken of: the loss, or with half of the bits a multiple of it."""
        return self.stores[0].optimizer.scale_loss(loss)

    def _scaled_limits(self) -> dict[str, Any]:
        """The limits for gradients of the scaled loss."""
        if not isinstance(self.host_variables.optimizer, keras.optimizers.LossScaleOptimizer):
            return dict(self.limits)
        scale = self.scale_loss(tf.constant(1.0))
        return {name: None if v is None else v * scale for name, v in self.limits.items()}

    def apply_in(self, store: int, gradients: Sequence[Tensor]) -> None:
        """The part of an update that concerns one store."""
        self.stores[store].apply([gradients[index] for index in self.packing.in_store(store)])

    def write_state(self, values: Sequence[Tensor]) -> None:
        """Put new values into the state's buffers."""
        for variable, value in zip(self.state_variables(), values, strict=True):
            variable.assign(value)

    def state_variables(self) -> list[Any]:
        """The variables that are the state's buffers."""
        return self.in_order(self.state_packing, [store.state for store in self.stores])

    def push(self) -> None:
        """Send the model's own variables to the buffers."""
        for buffer, content in zip(
            self.in_order(self.packing, [store.weights for store in self.stores]),
            self.packing.pack([_numpy(v) for v in self.host_variables.trainable]),
            strict=True,
        ):
            buffer.assign(content)
        packed = self.state_packing.pack([_numpy(v) for v in self.host_variables.state])
        self.write_state(packed)
        for name, slots in self.host_variables.slots.by_weight.items():
            if len(slots) < len(self.host_variables.trainable):
                for index, slot in slots.items():
                    self._own_slot(name, index).assign(_numpy(slot))
                continue
            values = [_numpy(slots[index]) for index in range(len(self.host_variables.trainable))]
            for slot, value in zip(self._slots(name), self.packing.pack(values), strict=True):
                slot.assign(value)
        for store in self.stores:
            for theirs, mine in zip(
                store.slots.others, self.host_variables.slots.others, strict=True
            ):
                theirs.assign(_numpy(mine))

    def pull(self) -> None:
        """Bring the buffers' contents to the model's own variables."""
        for variable, value in zip(
            self.host_variables.trainable, self.packing.unpack(self.read()), strict=True
        ):
            variable.assign(value.numpy())
        for variable, value in zip(
            self.host_variables.state, self.state_packing.unpack(self.read_state()), strict=True
        ):
            variable.assign(value.numpy())
        for name, slots in self.host_variables.slots.by_weight.items():
            if len(slots) < len(self.host_variables.trainable):
                for index, slot in slots.items():
                    slot.assign(_numpy(self._own_slot(name, index)))
                continue
            values = self.packing.unpack([slot.value for slot in self._slots(name)])
            for index, value in enumerate(values):
                slots[index].assign(value.numpy())
        for mine, theirs in zip(
            self.host_variables.slots.others, self.stores[0].slots.others, strict=True
        ):
            mine.assign(_numpy(theirs))

    def set_learning_rate(self, value: float) -> None:
        """The same learning rate in every store, and in what is saved."""
        for optimizer in [
            self.host_variables.optimizer,
            *(store.optimizer for store in self.stores),
        ]:
            optimizer.learning_rate = value

    def learning_rate(self) -> float:
        """What the next update is made with."""
        return float(np.asarray(self.stores[0].optimizer.learning_rate))

    def _slots(self, name: str) -> list[Any]:
        found = [
            [store.slots.by_weight[name][index] for index in range(len(store.weights))]
            if store.weights
            else []
            for store in self.stores
        ]
        return self.in_order(self.packing, found)

    def _own_slot(self, name: str, weight: int) -> Any:
        """The slot of a weight that has a buffer of its own, where not every weight has a slot."""
        group = self.packing.groups.index((weight,))
        number = next(n for n, piece in enumerate(self.packing.pieces) if piece.group == group)
        store = self.packing.pieces[number].store
        position = self.packing.in_store(store).index(number)
        return self.stores[store].slots.by_weight[name][position]

    def in_order(self, packing: FlatLayout, by_store: list[list[Any]]) -> list[Any]:
        """From lists by store to one list in the order of the packing's pieces."""
        iterators = [iter(values) for values in by_store]
        return [next(iterators[piece.store]) for piece in packing.pieces]


def _numpy(variable: Any) -> np.ndarray[Any, Any]:
    return np.asarray(variable.numpy())
