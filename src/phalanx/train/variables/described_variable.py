"""Described variables: the host has their shape and initializer, and their value only if read."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from phalanx.errors import ConfigurationError
from phalanx.train.types import KerasVariable, Optimizer, Tensor, TFVariable
from phalanx.train.variables import row_transfer
from phalanx.train.variables.row_initializer import RowInitializer
from phalanx.train.variables.row_snapshot import RowSnapshot
from phalanx.train.variables.row_transfer import (
    RangeShards,
    copy_rows,
    fill_rows,
    split_chunks,
    split_rows,
)

_numbers = itertools.count()
_DESCRIBES: ContextVar[bool] = ContextVar("describes", default=False)
_IS_APART: ContextVar[bool] = ContextVar("is_apart", default=False)
_STAND_IN: ContextVar[Callable[[KerasVariable], Tensor] | None] = ContextVar(
    "stand_in", default=None
)


@dataclass(frozen=True)
class _Identity:
    """What Keras' optimizers ask of a variable that they do not read: its name and its key."""

    name: str
    _unique_id: str


class DescribedVariable(keras.Variable):  # type: ignore[misc]
    """A variable that the host only describes, or a slot of an optimizer for such a variable.

    It has up to two places. Its shards are trained: buffers on one device or on parameter servers,
    which initialize them where they are. Its host copy is made when code on the host reads or
    assigns the value, and lasts from then on. Where the only shard is on this host, it is the host
    copy too.
    """

    _identity: _Identity

    def __init__(
        self,
        shape: Sequence[int],
        initializer: Any,
        dtype: str,
        name: str,
        trainable: bool = True,
    ) -> None:
        self.describe(initializer, name)
        key = self._identity._unique_id
        super().__init__(
            initializer, shape=tuple(shape), dtype=dtype, trainable=trainable, autocast=False,
            name=name,
        )  # fmt: skip
        self._identity = _Identity(f"{self.path}:0", key)

    def describe(self, initializer: Any, name: str) -> None:
        """Set what belongs to the description: there is no value yet."""
        self.in_ranges = False
        """Whether each shard has consecutive rows."""
        self.tracks_changes = False
        """Whether the shards note which rows have changed, for incremental checkpoints."""
        self.changes: tuple[TFVariable, ...] = ()
        """For each shard: which of its rows have changed, if that is noted."""
        self.snapshots: tuple[RowSnapshot, ...] = ()
        """For each shard: what keeps its rows for a save, if all updates of rows go through it."""
        self.writes = 0
        """How often all rows were written at once, which `changes` do not show."""
        self._initial = initializer
        self._local: TFVariable = None
        self._shards: tuple[TFVariable, ...] = ()
        self._is_filled = False
        self._released: str | None = None
        self._identity = _Identity(name, f"described-{next(_numbers)}")
        self._optimizers: list[tuple[Optimizer, int]] = []

    def _initialize_with_initializer(self, initializer: Any) -> None:
        pass

    def _deferred_initialize(self) -> None:
        pass

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(tf.as_dtype(self._dtype).size)

    @property
    def is_large(self) -> bool:
        """Whether the variable is moved and saved in several pieces."""
        return self.nbytes > row_transfer.CHUNK_BYTES

    @property
    def shards(self) -> tuple[TFVariable, ...]:
        """The buffers that hold the rows, as `read_spans` says; else the host copy."""
        if not self._shards:
            self._make_local()
        return self._shards or (self._local,)

    @property
    def value(self) -> Any:
        if self._local is None:
            if _DESCRIBES.get():
                return self._identity
            scope = get_stateless_scope() if in_stateless_scope() else None
            if scope is None or scope.get_current_value(self) is None:
                make = _STAND_IN.get()
                if make is not None and not tf.executing_eagerly():
                    return self._maybe_autocast(make(self))
                if in_symbolic_scope():
                    return self._maybe_autocast(tf.zeros(self.shape, self._dtype))
        return super().value

    @property
    def _value(self) -> TFVariable:
        """The host copy, with the values that it had when it was made or last pulled."""
        with tf.init_scope():
            if self._local is None:
                self._check_readable()
                if self._shards:
                    self.fill()
                self._make_local()
                if self._shards:
                    copy_rows(self._shards, [self._local])
            if not self._shards:
                self.fill()
        return self._local

    @_value.setter
    def _value(self, value: TFVariable | None) -> None:
        """Keras assigns None in its constructor; there is no value then anyway."""

    def _direct_assign(self, value: Tensor) -> None:
        with tf.init_scope():
            self._make_local()
        if not self._shards:
            self._begin_write()
        self.writes += 1
        self._is_filled = self._is_filled or not self._shards
        self._local.assign(tf.cast(value, self._local.dtype))

    def attach(self, shards: Sequence[TFVariable], is_filled: bool = False) -> None:
        """Train the variable in these buffers from now on; values that it has are kept.

        Args:
            shards: The buffers that hold the rows, as `read_spans` says.
            is_filled: Whether they have their initial values already.
        """
        self.changes, self.snapshots = (), ()
        self.writes += 1
        shards = RangeShards(shards) if self.in_ranges else tuple(shards)
        old = self._shards or ((self._local,) if self._local is not None else ())
        has_values = bool(old) and self._is_filled
        self._released = None
        if len(shards) == 1 and "/job:ps" not in shards[0].device:
            if has_values:
                copy_rows(old, shards)
            self._shards = ()
            self._set_local(shards[0])
        else:
            if has_values and self._local is None:
                copy_rows(old, shards)
            else:
                has_values = False
            self._shards = shards
        self._is_filled = has_values or is_filled

    def move(self, shards: Sequence[TFVariable]) -> None:
        """Go on with other variables, on parameter servers, that have the same rows."""
        self._shards = RangeShards(shards) if self.in_ranges else tuple(shards)
        self.writes += 1

    def clear_changes(self) -> None:
        """Note that no row has changed since now."""
        for changed in self.changes:
            changed.assign(tf.zeros_like(changed))

    def release(self, reason: str | None) -> None:
        """Forget the shards, which end with the run; `reason` says where the rows are then.

        Without a reason, a variable that has no host copy keeps its shards.
        """
        if self._shards and (self._local is not None or reason is not None):
            self._shards = ()
            self._released = reason if self._local is None else None

    def fill(self) -> None:
        """Give the rows their initial values, where they are, unless they have values."""
        if self._is_filled:
            return
        shards = self.shards
        rows = RowInitializer.make(self._initial, tuple(self.shape), self._dtype)
        if rows is not None:
            fill_rows(shards, rows.make_rows, rows.block_rows)
        else:
            whole = self._initial(tuple(self.shape), dtype=self._dtype)
            fill_rows(
                shards, lambda begin, end: whole[begin:end], row_transfer.chunk_rows(shards[0])
            )
        self._is_filled = True

    def mark_filled(self) -> None:
        """Note that all rows of the shards were written: a host copy beside them is old."""
        self.writes += 1
        self._is_filled = True
        if self._shards:
            self._local = None

    def push(self) -> None:
        """Copy the host copy to the shards if there is one; otherwise initialize them."""
        if self._shards and self._local is not None:
            self._begin_write()
            copy_rows([self._local], self._shards)
            self.writes += 1
            self._is_filled = True
        self.fill()

    def note_write(self) -> None:
        """Note that all rows are about to be written at once."""
        self._begin_write()
        self.writes += 1

    def find_snapshot(self, shard: TFVariable) -> RowSnapshot | None:
        """Return what keeps the rows of a shard for a save in the background."""
        pairs = zip(self.shards, self.snapshots, strict=False)
        return next((snapshot for each, snapshot in pairs if each is shard), None)

    def _begin_write(self) -> None:
        """Let a save in the background have the rows as they are, before all are written."""
        for snapshot in self.snapshots:
            snapshot.keep_all(row_transfer.chunk_rows(self.shards[0]))

    def pull(self) -> None:
        """Copy the shards to the host copy if there is one, or if the table is not large."""
        if self._shards and (self._local is not None or not self.is_large):
            self._make_local()
            copy_rows(self._shards, [self._local])

    def is_finite(self) -> bool:
        """Whether no value is NaN or infinite; found where the rows are."""
        for piece in itertools.chain.from_iterable(split_chunks(self.shards)):
            with tf.device(piece.rows.shard.device):
                finite = tf.reduce_all(tf.math.is_finite(row_transfer.read_range(piece.rows)))
            if not bool(finite.numpy()):
                return False
        return True

    def make_slot(self, name: str, initializer: Any) -> DescribedVariable:
        """Describe a slot of an optimizer for this variable."""
        slot = type(self)(tuple(self.shape), initializer, self._dtype, name, trainable=False)
        slot.in_ranges, slot.tracks_changes = self.in_ranges, self.tracks_changes
        return slot

    def note_optimizer(self, optimizer: Optimizer, index: int) -> None:
        """Let an optimizer of the host find the slots of the variable by its host copy."""
        self._optimizers.append((optimizer, index))
        if self._local is not None:
            self._set_local(self._local)

    def _make_local(self) -> None:
        if self._local is None:
            self._check_readable()
            with tf.init_scope():
                zeros = tf.zeros(self.shape, self._dtype)
                self._set_local(tf.Variable(zeros, trainable=self.trainable, name=self.name))

    def _set_local(self, variable: TFVariable) -> None:
        self._local = variable
        for optimizer, index in self._optimizers:
            optimizer._trainable_variables_indices[variable._unique_id] = index

    def _check_readable(self) -> None:
        if self._released is not None:
            raise ConfigurationError(
                f"{self.path} ({self.nbytes / 1e9:.2f} GB) is not on this host: {self._released}"
            )

    def __repr__(self) -> str:
        kind, shape = type(self).__name__, tuple(self.shape)
        return f"<{kind} path={self.path}, shape={shape}, dtype={self.dtype}>"

    @property
    def _shared_name(self) -> str:
        return str(self.path)

    def _serialize_to_tensors(self) -> Mapping[str, Any]:
        if _IS_APART.get() and self.is_large:
            return {"VARIABLE_VALUE": {describe_slice(self.shape, 0, 1): self._first_row()}}
        return {"VARIABLE_VALUE": self.value}

    def _restore_from_tensors(self, restored_tensors: Mapping[str, Any]) -> None:
        if not (_IS_APART.get() and self.is_large):
            self.assign(restored_tensors["VARIABLE_VALUE"])

    def _first_row(self) -> Tensor:
        """Return the first row as a tensor of this host, where TensorFlow then saves it."""
        return tf.constant(row_transfer.read_range(next(split_rows(self.shards, 1))).numpy())


def describe_slice(shape: Sequence[int], start: int, length: int) -> str:
    """Describe some rows of a variable in the words of TensorFlow's checkpoints.

    >>> describe_slice((100, 8), 20, 5)
    '100 8 20,5:0,8'
    """
    sizes = " ".join(str(size) for size in shape)
    return f"{sizes} {start},{length}" + "".join(f":0,{size}" for size in shape[1:])


@contextlib.contextmanager
def refer_by_description() -> Iterator[None]:
    """Let Keras' optimizers refer to variables in the `with` block, without a host copy of them."""
    token = _DESCRIBES.set(True)
    try:
        yield
    finally:
        _DESCRIBES.reset(token)


@contextlib.contextmanager
def stand_in(make: Callable[[KerasVariable], Tensor]) -> Iterator[None]:
    """Use what `make` returns for variables without a host copy that are read in the `with` block.

    A step that is only traced needs no values, but their shapes and types.
    """
    token = _STAND_IN.set(make)
    try:
        yield
    finally:
        _STAND_IN.reset(token)


@contextlib.contextmanager
def set_large_apart() -> Iterator[None]:
    """Let TensorFlow save and restore only the first row of large variables in the `with` block."""
    token = _IS_APART.set(True)
    try:
        yield
    finally:
        _IS_APART.reset(token)


def build_described(optimizer: Optimizer, weights: Sequence[KerasVariable]) -> None:
    """Build an optimizer of the host; its slots for described variables are described as well."""
    described = {id(w): w for w in weights if isinstance(w, DescribedVariable)}
    if not described:
        optimizer.build(list(weights))
        return
    inner: Any = getattr(optimizer, "inner_optimizer", optimizer)
    add = inner.add_variable_from_reference

    def add_slot(
        reference_variable: KerasVariable, name: str = "var", initializer: Any = "zeros"
    ) -> KerasVariable:
        if id(reference_variable) not in described:
            return add(reference_variable, name=name, initializer=initializer)
        with keras.name_scope(inner.name):
            slot = described[id(reference_variable)].make_slot(
                f"{reference_variable.path.replace('/', '_')}_{name}",
                keras.initializers.get(initializer),
            )
        inner._track_variable(slot)
        return slot

    object.__setattr__(inner, "add_variable_from_reference", add_slot)
    try:
        with refer_by_description():
            optimizer.build(list(weights))
    finally:
        object.__delattr__(inner, "add_variable_from_reference")
    for index, weight in enumerate(weights):
        if isinstance(weight, DescribedVariable):
            weight.note_optimizer(inner, index)
