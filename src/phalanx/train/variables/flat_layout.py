"""Flat buffers: many variables are concatenated into few, so that few transfers move them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.types import Array, Tensor


@dataclass(frozen=True)
class VariableSpec:
    """What the layout needs to know of one variable."""

    shape: tuple[int, ...]
    dtype: str
    weight_decay: bool = False
    """Variables with and without weight decay never share a buffer."""
    flat: bool = True
    """Whether the variable may share a buffer with others."""
    pack: int = 0
    """Variables of different packs never share a buffer."""
    split: bool = False
    """Whether a variable that is not flat may be split by rows over the stores."""
    unit: int = 1
    """So many rows, from the first on, are never split."""
    tail: int = 0
    """So many rows at the end stay with those before them."""
    fixed: bool = False
    """Whether no training step changes the variable: then it only shares a buffer with such."""
    limit: int | None = None
    """The most bytes of a buffer, which travels as one message; only what is split has a limit."""
    looked_up: bool = False
    """Whether its gradient is sparse, with an entry for each lookup of a row: see `Buffer`."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * int(tf.as_dtype(self.dtype).size)


@dataclass(frozen=True, kw_only=True)
class Buffer(VariableSpec):
    """One buffer in one store: a slice of the concatenated variables of its group.

    The gradient of a buffer that is `looked_up` is a `tf.IndexedSlices` in which a row has as many
    entries as the step has looked it up. They are never summed on the way to the optimizer: Keras
    squares each of them.
    """

    group: int
    store: int


@dataclass(frozen=True)
class FlatLayout:
    """Which variables are concatenated into which buffers, and which store holds each buffer.

    >>> specs = [VariableSpec((2, 2), "float32"), VariableSpec((2,), "float32")]
    >>> layout = FlatLayout.plan(specs, stores=2)
    >>> [(buffer.store, buffer.shape) for buffer in layout.buffers]
    [(0, (3,)), (1, (3,))]
    >>> buffers = layout.flatten_arrays([np.ones((2, 2)), np.zeros(2)])
    >>> [value.shape for value in layout.unflatten(buffers)]
    [TensorShape([2, 2]), TensorShape([2])]
    """

    specs: tuple[VariableSpec, ...]
    groups: tuple[tuple[int, ...], ...]
    """The indices of the variables of each group; a group shares its buffers."""
    buffers: tuple[Buffer, ...]

    @classmethod
    def plan(cls, specs: Sequence[VariableSpec], stores: int = 1) -> FlatLayout:
        """Split evenly what may be split; place the rest, largest first, in the emptiest store."""
        shared: dict[tuple[str, bool, bool, int], list[int]] = {}
        separate: list[tuple[int, ...]] = []
        for index, spec in enumerate(specs):
            if spec.flat:
                kind = (spec.dtype, spec.weight_decay, spec.fixed, spec.pack)
                shared.setdefault(kind, []).append(index)
            else:
                separate.append((index,))
        groups = [tuple(indices) for indices in shared.values()] + separate
        load = [0] * stores
        buffers: list[Buffer] = []

        def add(group: int, store: int, shape: tuple[int, ...]) -> None:
            spec = specs[groups[group][0]]
            kind = {"weight_decay": spec.weight_decay, "fixed": spec.fixed}
            kind["looked_up"] = spec.looked_up
            buffers.append(Buffer(shape, spec.dtype, **kind, group=group, store=store))
            load[store] += math.prod(shape)

        def add_parts(group: int, store: int, shape: tuple[int, ...]) -> None:
            """Add buffers for these rows, as few as the limit allows."""
            spec = specs[groups[group][0]]
            row = math.prod(shape[1:]) * int(tf.as_dtype(spec.dtype).size)
            most = shape[0] if spec.limit is None else max(1, spec.limit // max(1, row))
            for begin in range(0, shape[0], max(1, most)):
                add(group, store, (min(most, shape[0] - begin), *shape[1:]))

        for group, indices in enumerate(groups[: len(shared)]):
            total = sum(specs[index].size for index in indices)
            for store, size in _split_evenly(total, stores):
                add_parts(group, store, (size,))
        by_size = sorted(
            range(len(shared), len(groups)), key=lambda group: -specs[groups[group][0]].nbytes
        )
        for group in by_size:
            spec = specs[groups[group][0]]
            if spec.split:
                parts = _split_evenly((spec.shape[0] - spec.tail) // spec.unit, stores)
                for number, (store, units) in enumerate(parts):
                    tail = spec.tail if number == len(parts) - 1 else 0
                    add_parts(group, store, (units * spec.unit + tail, *spec.shape[1:]))
            else:
                add(group, load.index(min(load)), spec.shape)
        return cls(tuple(specs), tuple(groups), tuple(buffers))

    @unconverted
    def in_store(self, store: int) -> list[int]:
        """Return the indices of the buffers in one store."""
        return [index for index, buffer in enumerate(self.buffers) if buffer.store == store]

    def flatten_arrays(self, values: Sequence[Array | None]) -> list[Array | None]:
        """Return the content of each buffer, on the host, from the values of the variables.

        Where the value of a variable with buffers of its own is None, so are its buffers.
        """
        flat = {
            number: np.concatenate([np.ravel(part) for part in parts if part is not None])
            for number, group in enumerate(self.groups)
            if (parts := [values[index] for index in group])[0] is not None
        }
        start = [0] * len(self.groups)
        contents: list[Array | None] = []
        for buffer in self.buffers:
            begin = start[buffer.group]
            start[buffer.group] += buffer.size
            if buffer.group not in flat:
                contents.append(None)
                continue
            part = flat[buffer.group][begin : start[buffer.group]].reshape(buffer.shape)
            contents.append(part.astype(tf.as_dtype(buffer.dtype).as_numpy_dtype))
        return contents

    @unconverted
    def flatten(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return the buffers from the values of the variables: `flatten_arrays` for tensors.

        Where the value of a variable with buffers of its own is None, so are its buffers.
        """
        ready: list[list[Tensor]] = []
        for number, group in enumerate(self.groups):
            sizes = [b.shape[0] for b in self.buffers if b.group == number and b.shape]
            if self._is_separate(group):
                value = values[group[0]]
                is_split = len(sizes) > 1 and value is not None
                ready.append(_split(value, sizes) if is_split else [value] * max(1, len(sizes)))
            else:
                flat = _concat([tf.reshape(values[index], [-1]) for index in group])
                ready.append(tf.split(flat, sizes) if len(sizes) > 1 else [flat])
        return [ready[buffer.group].pop(0) for buffer in self.buffers]

    @unconverted
    def unflatten(self, buffers: Sequence[Tensor]) -> list[Tensor]:
        """Return the values of the variables, as tensors through which gradients flow.

        Where the buffers of a variable that shares none are None, its value is None.
        """
        values: list[Tensor] = [None] * len(self.specs)
        for number, group in enumerate(self.groups):
            parts = [
                tensor
                for buffer, tensor in zip(self.buffers, buffers, strict=True)
                if buffer.group == number
            ]
            if self._is_separate(group):
                values[group[0]] = None if parts[0] is None else _concat(parts)
                continue
            flat = _concat(parts) if parts else tf.zeros([0], self.specs[group[0]].dtype)
            sizes = [self.specs[index].size for index in group]
            split = tf.split(flat, sizes) if len(group) > 1 else [flat]
            for index, part in zip(group, split, strict=True):
                values[index] = tf.reshape(part, self.specs[index].shape)
        return values

    def _is_separate(self, group: tuple[int, ...]) -> bool:
        return len(group) == 1 and not self.specs[group[0]].flat


def _split_evenly(total: int, stores: int) -> list[tuple[int, int]]:
    """Return each store that gets a part of `total`, and the size of its part."""
    bounds = [total * store // stores for store in range(stores + 1)]
    sizes = [(store, bounds[store + 1] - bounds[store]) for store in range(stores)]
    return [(store, size) for store, size in sizes if size]


def _split(value: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Split a tensor or a sparse gradient by rows."""
    if not isinstance(value, tf.IndexedSlices):
        return list(tf.split(value, sizes))
    parts, begin = [], 0
    for size in sizes:
        is_inside = tf.logical_and(value.indices >= begin, value.indices < begin + size)
        values, indices = (tf.boolean_mask(t, is_inside) for t in (value.values, value.indices))
        shape = tf.concat([[size], value.dense_shape[1:]], 0)
        parts.append(tf.IndexedSlices(values, indices - begin, shape))
        begin += size
    return parts


def _concat(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else tf.concat(tensors, 0)
