"""The weights, state and optimizer of a model, in buffers on a device or parameter servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import keras
import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.autograph import unconverted
from phalanx.train.types import (
    Array,
    GradientTape,
    KerasVariable,
    Optimizer,
    Tensor,
    TFVariable,
)
from phalanx.train.variables import row_transfer
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.described_variable import DescribedVariable
from phalanx.train.variables.flat_layout import FlatLayout
from phalanx.train.variables.host_variables import (
    HostVariables,
    inner_optimizer,
)
from phalanx.train.variables.index_shard import Sightings
from phalanx.train.variables.row_transfer import copy_rows, read_array, write_array
from phalanx.train.variables.sparse_tables import (
    Lookups,
    is_table,
    make_sparse,
)
from phalanx.train.variables.store import (
    VariableStore,
    make_in_place_store,
    make_stores,
    plan_state,
    plan_weights,
)
from phalanx.train.variables.table_buffers import TableBuffers

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class DeviceVariables:
    """The buffers that are trained: on one device, or sharded over parameter servers.

    Buffers have two orders: that of the layout, and by store. A buffer of a sparse table is never
    read as a whole; all other buffers are dense.
    """

    host_variables: HostVariables
    layout: FlatLayout
    state_layout: FlatLayout
    stores: list[VariableStore]
    clipping: Clipping
    is_copy: bool = False
    """Whether the described variables of the host are attached to other buffers than these."""

    @classmethod
    def place(
        cls,
        host_variables: HostVariables,
        devices: Sequence[str],
        clipping: Clipping,
        is_copy: bool = False,
        pack_bytes: int | None = None,
    ) -> DeviceVariables:
        """Create the buffers, spread evenly over the devices, and attach described variables.

        With `pack_bytes`, variables share a buffer only up to about this size.
        """
        trainable, optimizer = host_variables.trainable, host_variables.optimizer
        is_remote = any("/job:ps" in device for device in devices)
        limit = row_transfer.CHUNK_BYTES if is_remote else None
        layout = plan_weights(
            trainable, optimizer, len(devices), host_variables.disconnected,
            host_variables.looked_up, bool(host_variables.optimizers),
            host_variables.own_optimizers(), limit, pack_bytes,
        )  # fmt: skip
        state_layout = plan_state(host_variables.state, len(devices), host_variables.fixed, limit)
        if host_variables.optimizers:
            (device,) = devices
            stores = [make_in_place_store(device, layout, state_layout, host_variables)]
        else:
            stores = make_stores(devices, layout, state_layout, host_variables)
        placed = cls(host_variables, layout, state_layout, stores, clipping, is_copy)
        if not is_copy:
            placed._table_buffers.attach()
        return placed

    def replace_stores(self, stores: Sequence[VariableStore]) -> DeviceVariables:
        """Return variables with other stores, whose buffers have the same values already."""
        replaced = replace(self, stores=list(stores))
        replaced._table_buffers.move()
        return replaced

    def model_variables(self) -> list[KerasVariable]:
        return [*self.host_variables.trainable, *self.host_variables.state]

    @unconverted
    def read(self) -> list[Tensor]:
        return _order(self.layout, [[w.value for w in s.weights] for s in self.stores])

    @unconverted
    def read_dense(self) -> list[Tensor]:
        """Return copies of the dense buffers."""
        buffers = enumerate(self.read())
        return [tf.convert_to_tensor(b) for i, b in buffers if not self.is_sparse(i)]

    @unconverted
    def add_sparse(self, dense: Sequence[Tensor]) -> list[Tensor]:
        """Return all buffers in order, from the dense ones."""
        remaining = iter(dense)
        return [b if self.is_sparse(i) else next(remaining) for i, b in enumerate(self.read())]

    @unconverted
    def order_dense(self, by_store: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Return the dense buffers in the order of the layout, from lists by store."""
        iterators, buffers = [iter(values) for values in by_store], enumerate(self.layout.buffers)
        return [next(iterators[buffer.store]) for i, buffer in buffers if not self.is_sparse(i)]

    @unconverted
    def is_sparse(self, index: int) -> bool:
        """Whether a buffer holds rows of a sparse table."""
        return is_table(self._first_variable(index))

    @unconverted
    def sparse_buffers(self) -> list[int]:
        return [index for index in range(len(self.layout.buffers)) if self.is_sparse(index)]

    @unconverted
    def has_sparse_gradient(self, index: int) -> bool:
        """Whether the gradient of a buffer is a `tf.IndexedSlices`: of tables, and of lookups."""
        return self.is_sparse(index) or self.layout.buffers[index].looked_up

    @unconverted
    def sparse_gradients(self) -> list[int]:
        buffers = range(len(self.layout.buffers))
        return [index for index in buffers if self.has_sparse_gradient(index)]

    @unconverted
    def convert_gradient(self, gradient: Tensor | None, variable: KerasVariable) -> Tensor:
        """Return the gradient of a weight as its buffers need it: sparse or dense, zeros for None.

        The optimizer needs each lookup of a row in some weights: see `Buffer`.
        """
        weights = zip(self.host_variables.trainable, self.layout.specs, strict=True)
        if gradient is None:
            gradient = tf.zeros(variable.shape, variable.dtype)
        if any(spec.looked_up for weight, spec in weights if weight is variable):
            return make_sparse(gradient)
        return tf.convert_to_tensor(gradient)

    @unconverted
    def zero_gradients(self) -> list[Tensor]:
        """Return a gradient of zeros for each buffer; a sparse one has no rows."""
        return [
            tf.IndexedSlices(
                tf.zeros([0, *buffer.shape[1:]], buffer.dtype),
                tf.zeros([0], tf.int64),
                tf.constant(buffer.shape, tf.int64),
            )
            if self.has_sparse_gradient(index)
            else tf.zeros(buffer.shape, buffer.dtype)
            for index, buffer in enumerate(self.layout.buffers)
        ]

    def dense_bytes(self) -> int:
        """Return how many bytes each step reads of the dense buffers."""
        buffers = enumerate(self.layout.buffers)
        return sum(buffer.nbytes for i, buffer in buffers if not self.is_sparse(i))

    @cached_property
    def _table_buffers(self) -> TableBuffers:
        return TableBuffers(self.host_variables, self.layout, self.stores)

    def _first_variable(self, index: int) -> KerasVariable:
        group = self.layout.groups[self.layout.buffers[index].group]
        return self.host_variables.trainable[group[0]]

    @unconverted
    def prepare_lookups(self, buffers: Sequence[Tensor], tape: GradientTape = None) -> Lookups:
        shards: dict[int, list[tuple[int, Tensor]]] = {}
        for index in self.sparse_buffers():
            shard = (index, buffers[index])
            shards.setdefault(id(self._first_variable(index)), []).append(shard)
        is_remote = any("/job:ps" in store.device for store in self.stores)
        return Lookups(shards, is_remote, tape, self._table_buffers.index_shards())

    @unconverted
    def read_state(self) -> list[Tensor]:
        return [variable.read_value() for variable in self.state_variables()]

    @unconverted
    def read_changing_state(self) -> list[Tensor]:
        """Read the state that training steps change: all but frozen weights."""
        return [variable.read_value() for variable in self.select_changing(self.state_variables())]

    @unconverted
    def write_changing_state(self, values: Sequence[Tensor]) -> None:
        variables = self.select_changing(self.state_variables())
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)

    @unconverted
    def select_changing(self, state: Sequence[T]) -> list[T]:
        """Return the buffers of state that training steps change."""
        buffers = zip(state, self.state_layout.buffers, strict=True)
        return [value for value, buffer in buffers if not buffer.fixed]

    @unconverted
    def fixed_state(self) -> list[TFVariable]:
        """Return the buffers of state that training steps never change: frozen weights."""
        buffers = zip(self.state_variables(), self.state_layout.buffers, strict=True)
        return [variable for variable, buffer in buffers if buffer.fixed]

    @unconverted
    def join_state(self, fixed: Sequence[T], changing: Sequence[T]) -> list[T]:
        """Return all buffers of state in order, from those that steps change and the others."""
        fixed_values, changing_values = iter(fixed), iter(changing)
        buffers = self.state_layout.buffers
        return [next(fixed_values if buffer.fixed else changing_values) for buffer in buffers]

    @unconverted
    def state_variables(self) -> list[TFVariable]:
        return _order(self.state_layout, [store.state for store in self.stores])

    @unconverted
    def apply(self, gradients: Sequence[Tensor], are_stored: bool = False) -> None:
        """Update all weights by the gradients of their buffers, clipped if limits are set.

        Args:
            gradients: A gradient of each buffer.
            are_stored: Whether each gradient is on the device of its buffer, and stays there.
        """
        accumulates = inner_optimizer(self.host_variables.optimizer).gradient_accumulation_steps
        if accumulates and self.clipping.has_limits:
            clipped = self._clip_means(gradients)
        else:
            clipped = self.clip(gradients, are_stored)
        for number, store in enumerate(self.stores):
            store.apply([clipped[index] for index in self.layout.in_store(number)])

    @unconverted
    def _clip_means(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Clip the means of gradients that the optimizer accumulates, as Keras does.

        The optimizer adds the sums of earlier steps to what it gets, and divides by the number of
        steps. So what it gets in an update is computed from the mean that it shall have.
        """
        scale = self.scale_loss(tf.constant(1.0))
        contributions = []
        for index, gradient in enumerate(gradients):
            number = self.layout.buffers[index].store
            position = self.layout.in_store(number).index(index)
            contributions.append(self.stores[number].accumulate(position, gradient, scale))
        clipped = self.clip([each.mean for each in contributions], are_stored=True)
        pairs = zip(contributions, clipped, strict=True)
        return [contribution.replace_mean(mean) for contribution, mean in pairs]

    @unconverted
    def growing_buffers(self) -> list[int]:
        """Return the buffers that hold rows of growing tables."""
        return list(self._table_buffers.index_shards())

    @unconverted
    def no_sightings(self) -> list[Sightings]:
        """Return what a step has seen in each growing buffer that looks nothing up."""
        return [Sightings.none() for _ in self.growing_buffers()]

    @unconverted
    def grow(self, sightings: Sequence[Sightings]) -> None:
        """Count the ids that were looked up in each growing buffer, and admit new ones."""
        for index, seen in zip(self.growing_buffers(), sightings, strict=True):
            store = self.layout.buffers[index].store
            self.stores[store].grow(self.layout.in_store(store).index(index), seen)

    def apply_call(
        self, optimizer: Optimizer, gradients: Sequence[Tensor], variables: Sequence[KerasVariable]
    ) -> None:
        """Update some weights by an optimizer of the model, for a step that calls it itself."""
        (store,) = self.stores
        hosts = zip(self.host_variables.optimizers, store.optimizers, strict=True)
        clone = next(clone for host, clone in hosts if host is optimizer)
        with tf.device(store.device):
            clone.apply(list(gradients), [self._stored[id(v)] for v in variables])

    def is_stored(self, variable: KerasVariable) -> bool:
        """Whether a variable of the host is a weight, or belongs to an optimizer."""
        return id(variable) in self._stored

    def read_variable(self, variable: KerasVariable) -> Tensor:
        """Read a weight that has a buffer of its own, or a variable of an optimizer."""
        return tf.convert_to_tensor(self._stored[id(variable)].value)

    def write_variable(self, variable: KerasVariable, value: Tensor) -> None:
        """Assign a weight that has a buffer of its own, or a variable of an optimizer."""
        self._stored[id(variable)].assign(value)

    def find_optimizer_value(self, variable: KerasVariable) -> Tensor | None:
        """Return the value of a variable of an optimizer on the host; None for other variables."""
        if id(variable) in self._stored:
            return self.read_variable(variable)
        if id(variable) in {id(v) for v in self.host_variables.optimizer.variables}:
            raise ConfigurationError(
                f"the step reads {variable.path} of the optimizer, which is part of a buffer: read "
                "only its iterations and its learning rate"
            )
        return None

    @cached_property
    def _stored(self) -> dict[int, KerasVariable]:
        """The variables of the first store, by the id of the variable on the host."""
        store = self.stores[0]
        shared = zip(self.host_variables.slots.shared, store.slots.shared, strict=True)
        stored = {id(host): variable for host, variable in shared}
        if self.host_variables.optimizers:
            weights = enumerate(store.weights)
            stored |= {id(self._first_variable(index)): weight for index, weight in weights}
        return stored

    @unconverted
    def clip(self, gradients: Sequence[Tensor], are_stored: bool = False) -> list[Tensor]:
        """Clip the gradients of the scaled loss."""
        optimizer, clipping = self.host_variables.optimizer, self.clipping
        scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if scales or optimizer.loss_scale_factor is not None:
            clipping = clipping.scale(self.scale_loss(tf.constant(1.0)))
        stored = [self.stores[buffer.store].device for buffer in self.layout.buffers]
        return clipping.apply(gradients, self.layout, stored if are_stored else None)

    @unconverted
    def scale_loss(self, loss: Tensor) -> Tensor:
        """Multiply the loss by the loss scale of the optimizer, if it has one."""
        return self.stores[0].optimizer.scale_loss(loss)

    def push(self) -> None:
        """Copy the host variables to the buffers; initialize those that have no host copy."""
        for variable, shards, _ in self._table_buffers.described():
            variable.push()
            if self.is_copy:
                copy_rows(variable.shards, shards)
        for index, parts in self._table_buffers.indexes():
            index.push(parts)
        weights = _order(self.layout, [store.weights for store in self.stores])
        _write(weights, self.layout.flatten_arrays(_read_all(self.host_variables.trainable)))
        state = [_numpy(variable) for variable in self.host_variables.state]
        _write(self.state_variables(), self.state_layout.flatten_arrays(state))
        for name, slots in self.host_variables.slots.by_name.items():
            if self._has_all(slots):
                values = _read_all(self._by_weight(slots))
                _write(self._slots(name), self.layout.flatten_arrays(values))
            else:
                for slot, stored in self._slot_pairs(name, slots):
                    stored.assign(_numpy(slot))
        for store in self.stores:
            shared = zip(store.slots.shared, self.host_variables.slots.shared, strict=True)
            for stored, local in shared:
                stored.assign(_numpy(local))
            for row_optimizer in store.row_optimizers.values():
                if row_optimizer.waiting is not None:
                    with tf.device(store.device):
                        row_optimizer.waiting.find()

    def pull(self) -> None:
        """Copy the buffers to the host variables; a large one only if it has a host copy."""
        for variable, _, _ in self._table_buffers.described():
            variable.pull()
        for index in self.host_variables.indexes():
            index.pull()
        weights = self._read_undescribed(self.read())
        _assign(self.host_variables.trainable, self.layout.unflatten(weights))
        _assign(self.host_variables.state, self.state_layout.unflatten(self._read_all_state()))
        for name, slots in self.host_variables.slots.by_name.items():
            if self._has_all(slots):
                values = [s if s is None else s.value for s in self._slots(name)]
                stored = self._read_undescribed(values)
                _assign(self._by_weight(slots), self.layout.unflatten(stored))
            else:
                for slot, one in self._slot_pairs(name, slots):
                    slot.assign(_numpy(one))
        _assign(self.host_variables.slots.shared, self.stores[0].slots.shared)

    def _read_all_state(self) -> list[Array]:
        return [read_array(variable) for variable in self.state_variables()]

    def _read_undescribed(self, buffers: Sequence[TFVariable]) -> list[Array | None]:
        """Return the contents of all buffers but those of described variables."""
        return [
            None if _is_described(self._first_variable(index)) else read_array(buffer)
            for index, buffer in enumerate(buffers)
        ]

    def finalize(self) -> bool:
        """Replace the weights by their moving averages, if the optimizer keeps such averages.

        Returns whether the weights changed.
        """
        if not self.host_variables.finalizes:
            return False
        if inner_optimizer(self.host_variables.optimizer).use_ema:
            for variable, _, _ in self._table_buffers.described():
                variable.note_write()
        for store in self.stores:
            with tf.device(store.device):
                store.finalize()
        return bool(inner_optimizer(self.host_variables.optimizer).use_ema)

    def learning_rate(self) -> float:
        return float(np.asarray(self.stores[0].optimizer.learning_rate))

    def set_learning_rate(self, value: float) -> None:
        """Set the learning rate in every store, and in what is saved."""
        self.host_variables.optimizer.learning_rate = value
        for store in self.stores:
            store.optimizer.learning_rate = value

    def _has_all(self, slots: dict[int, KerasVariable]) -> bool:
        """Whether every weight with a host copy has this slot, of its own shape.

        With Muon some have none. Described weights have slots that are described, too.
        """
        weights = list(enumerate(self.host_variables.trainable))
        return all(
            position in slots and tuple(slots[position].shape) == tuple(weight.shape)
            for position, weight in weights
            if not _is_described(weight)
        ) and all(
            _is_described(slots[position])
            for position, weight in weights
            if _is_described(weight) and position in slots
        )

    def _by_weight(self, slots: dict[int, KerasVariable]) -> list[KerasVariable | None]:
        """Return the slot of each weight; a table with an optimizer of its own may have none."""
        return [slots.get(position) for position in range(len(self.host_variables.trainable))]

    def _slots(self, name: str) -> list[KerasVariable | None]:
        """Return the slots of one name in the order of the layout."""
        by_store = [
            [store.slots.by_name.get(name, {}).get(i) for i in range(len(store.weights))]
            for store in self.stores
        ]
        return _order(self.layout, by_store)

    def _slot_pairs(
        self, name: str, slots: dict[int, KerasVariable]
    ) -> Iterator[tuple[KerasVariable, KerasVariable]]:
        """Yield the slots on the host and in their store, where each weight has one buffer."""
        for weight, slot in slots.items():
            if not _is_described(slot):
                group = self.layout.groups.index((weight,))
                index = next(i for i, b in enumerate(self.layout.buffers) if b.group == group)
                store = self.layout.buffers[index].store
                position = self.layout.in_store(store).index(index)
                yield slot, self.stores[store].slots.by_name[name][position]


def _order(layout: FlatLayout, by_store: Sequence[Sequence[T]]) -> list[T]:
    """Return one list in the order of the layout's buffers, from lists by store."""
    iterators = [iter(values) for values in by_store]
    return [next(iterators[buffer.store]) for buffer in layout.buffers]


def _assign(variables: Sequence[KerasVariable | None], values: Sequence[Tensor]) -> None:
    for variable, value in zip(variables, values, strict=True):
        if variable is not None and value is not None:
            variable.assign(_numpy(value))


def _write(
    buffers: Sequence[KerasVariable | TFVariable | None], contents: Sequence[Array | None]
) -> None:
    for buffer, content in zip(buffers, contents, strict=True):
        if content is not None:
            write_array(buffer.value if isinstance(buffer, keras.Variable) else buffer, content)


def _read_all(variables: Sequence[KerasVariable | None]) -> list[Array | None]:
    return [None if v is None or _is_described(v) else _numpy(v) for v in variables]


def _is_described(variable: KerasVariable) -> bool:
    return isinstance(variable, DescribedVariable)


def _numpy(value: KerasVariable | Tensor | Array) -> Array:
    return np.asarray(value if isinstance(value, np.ndarray) else value.numpy())
