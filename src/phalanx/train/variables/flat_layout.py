"""Many variables in few buffers: what makes transfers few, however many layers a model has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

Tensor = Any


@dataclass(frozen=True)
class VariableSpec:
    """What packing must know of one variable. Items of different `kind` never share a buffer.

    What is not `flat` has buffers of its own: one, or if it may be `cut`, some rows in each store.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: str = ""
    flat: bool = True
    cut: bool = False

    @property
    def size(self) -> int:
        """How many elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes."""
        return self.size * int(tf.as_dtype(self.dtype).size)


@dataclass(frozen=True)
class Buffer:
    """One buffer in one store: a slice of its group's variables laid end to end."""

    group: int
    store: int
    shape: tuple[int, ...]
    dtype: str
    kind: str

    @property
    def nbytes(self) -> int:
        """How many bytes."""
        return math.prod(self.shape) * int(tf.as_dtype(self.dtype).size)


@dataclass(frozen=True)
class FlatLayout:
    """A plan: which variables go end to end into which buffers, and in which store each buffer is.

    >>> specs = [VariableSpec((2, 2), "float32"), VariableSpec((2,), "float32")]
    >>> plan = FlatLayout.plan(specs, stores=2)
    >>> [(piece.store, piece.shape) for piece in plan.pieces]
    [(0, (3,)), (1, (3,))]
    >>> pieces = plan.pack([np.ones((2, 2)), np.zeros(2)])
    >>> [value.shape for value in plan.unpack(pieces)]
    [TensorShape([2, 2]), TensorShape([2])]
    """

    items: tuple[VariableSpec, ...]
    groups: tuple[tuple[int, ...], ...]
    pieces: tuple[Buffer, ...]

    @classmethod
    def plan(cls, items: Sequence[VariableSpec], stores: int = 1) -> FlatLayout:
        """Cut what may be cut evenly; the rest goes, the largest first, to the emptiest store."""
        shared: dict[tuple[str, str], list[int]] = {}
        alone: list[tuple[int, ...]] = []
        for index, item in enumerate(items):
            if item.flat:
                shared.setdefault((item.dtype, item.kind), []).append(index)
            else:
                alone.append((index,))
        groups = [tuple(indices) for indices in shared.values()] + alone
        load = [0] * stores
        pieces: list[Buffer] = []
        for number, group in enumerate(groups[: len(shared)]):
            first = items[group[0]]
            total = sum(items[index].size for index in group)
            cuts = [total * part // stores for part in range(stores + 1)]
            for store in range(stores):
                size = cuts[store + 1] - cuts[store]
                if size:
                    pieces.append(Buffer(number, store, (size,), first.dtype, first.kind))
                    load[store] += size
        for number in sorted(
            range(len(shared), len(groups)), key=lambda number: -items[groups[number][0]].nbytes
        ):
            item = items[groups[number][0]]
            if item.cut:
                cuts = [item.shape[0] * part // stores for part in range(stores + 1)]
                shares = [(store, cuts[store + 1] - cuts[store]) for store in range(stores)]
                shapes = [(store, (rows, *item.shape[1:])) for store, rows in shares if rows]
            else:
                shapes = [(load.index(min(load)), item.shape)]
            for store, shape in shapes:
                pieces.append(Buffer(number, store, shape, item.dtype, item.kind))
                load[store] += math.prod(shape)
        return cls(tuple(items), tuple(groups), tuple(pieces))

    def pack(self, values: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        """The buffers' contents, on the host, from the variables' values."""
        flat = {
            number: np.concatenate([np.ravel(values[index]) for index in group])
            for number, group in enumerate(self.groups)
        }
        start = dict.fromkeys(flat, 0)
        packed = []
        for piece in self.pieces:
            begin = start[piece.group]
            start[piece.group] += math.prod(piece.shape)
            part = flat[piece.group][begin : start[piece.group]]
            packed.append(part.reshape(piece.shape).astype(tf.as_dtype(piece.dtype).as_numpy_dtype))
        return packed

    def unpack(self, pieces: Sequence[Tensor]) -> list[Tensor]:
        """The variables' values, as tensors through which gradients flow, from the buffers.

        Where a buffer of a variable's own is None, its value is None.
        """
        values: list[Tensor] = [None] * len(self.items)
        for number, group in enumerate(self.groups):
            mine = [
                tensor
                for piece, tensor in zip(self.pieces, pieces, strict=True)
                if piece.group == number
            ]
            if len(group) == 1 and not self.items[group[0]].flat:
                is_whole = len(mine) == 1 or mine[0] is None
                values[group[0]] = mine[0] if is_whole else tf.concat(mine, 0)
                continue
            if not mine:
                mine = [tf.zeros([0], self.items[group[0]].dtype)]
            whole = mine[0] if len(mine) == 1 else tf.concat(mine, 0)
            parts = (
                tf.split(whole, [self.items[index].size for index in group])
                if len(group) > 1
                else [whole]
            )
            for index, part in zip(group, parts, strict=True):
                values[index] = tf.reshape(part, self.items[index].shape)
        return values

    def join(self, values: Sequence[Tensor]) -> list[Tensor]:
        """The buffers from the variables' values: `pack` for tensors."""
        ready: dict[int, list[Tensor]] = {}
        for number, group in enumerate(self.groups):
            sizes = [
                piece.shape[0] for piece in self.pieces if piece.group == number and piece.shape
            ]
            if len(group) == 1 and not self.items[group[0]].flat:
                whole = values[group[0]]
                is_cut = len(sizes) > 1 and whole is not None
                ready[number] = tf.split(whole, sizes) if is_cut else [whole] * max(1, len(sizes))
            else:
                parts = [tf.reshape(values[index], [-1]) for index in group]
                whole = parts[0] if len(parts) == 1 else tf.concat(parts, 0)
                ready[number] = tf.split(whole, sizes) if len(sizes) > 1 else [whole]
        return [ready[piece.group].pop(0) for piece in self.pieces]

    def in_store(self, store: int) -> list[int]:
        """Which of the pieces are in one store."""
        return [number for number, piece in enumerate(self.pieces) if piece.store == store]
