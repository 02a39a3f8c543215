"""Where weights live: a device's buffers, and the optimizer that updates them there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.variables.flat_layout import Buffer, FlatLayout, Tensor, VariableSpec
from phalanx.train.variables.sparse_tables import RowOptimizer, is_table, make_block, merge_rows

# These treat every element alone, so that a buffer of many variables is updated as each would be.
ELEMENTWISE = (
    keras.optimizers.SGD,
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.Adamax,
    keras.optimizers.Nadam,
    keras.optimizers.Adagrad,
    keras.optimizers.Adadelta,
    keras.optimizers.RMSprop,
    keras.optimizers.Ftrl,
    keras.optimizers.Lion,
)

# What is of this size keeps buffers of its own, so that its sparse gradients stay sparse.
LARGE_BYTES = 64 * 2**20


@dataclass
class OptimizerSlots:
    """An optimizer's variables: those that belong to a weight, by name, and the others in order."""

    by_weight: dict[str, dict[int, Any]] = field(default_factory=dict)
    others: list[Any] = field(default_factory=list)


@dataclass(frozen=True)
class VariableStore:
    """The buffers of one device, or of one parameter server, and their own optimizer."""

    device: str
    weights: list[Any]
    state: list[Any]
    optimizer: Any
    slots: OptimizerSlots
    by_row: dict[int, RowOptimizer] = field(default_factory=dict)
    """Those of the weights that are updated row by row, by their place."""

    def apply(self, gradients: Sequence[Tensor]) -> None:
        """Update the weights, on the device where they are."""
        whole = [place for place in range(len(self.weights)) if place not in self.by_row]
        with tf.device(self.device):
            for place, rows in self.by_row.items():
                rows.apply(gradients[place])
            if whole:
                mine = [gradients[place] for place in whole]
                if type(self.optimizer) not in ELEMENTWISE:
                    mine = [tf.convert_to_tensor(gradient) for gradient in mine]
                self.optimizer.apply(mine, [self.weights[place] for place in whole])
            elif self.by_row:
                list(self.by_row.values())[-1].advance_others()


def plan_weights(variables: Sequence[Any], optimizer: Any, stores: int) -> FlatLayout:
    """Weights end to end where the optimizer allows it, large ones cut; the others as they are."""
    elementwise = type(optimizer) in ELEMENTWISE
    items = []
    for variable in variables:
        may_cut = elementwise and variable.constraint is None
        is_alone = is_table(variable) or _is_large(variable)
        items.append(
            VariableSpec(
                tuple(variable.shape),
                variable.dtype,
                kind="decay" if _is_decayed(optimizer, variable) else "",
                flat=may_cut and not is_alone,
                cut=may_cut and is_alone,
            )
        )
    return FlatLayout.plan(items, stores)


def plan_state(variables: Sequence[Any], stores: int = 1) -> FlatLayout:
    """What a model keeps beside its weights, such as the averages of batch normalization."""
    return FlatLayout.plan([VariableSpec(tuple(v.shape), v.dtype) for v in variables], stores)


def make_stores(
    devices: Sequence[str],
    weights: FlatLayout,
    state: FlatLayout,
    optimizer: Any,
    variables: Sequence[Any],
) -> list[VariableStore]:
    """One store for each device; a piece of number k is put on the device of that number."""
    stores = []
    for number, device in enumerate(devices):
        with tf.device(device):
            mine = [weights.pieces[index] for index in weights.in_store(number)]
            buffers = []
            for piece in mine:
                group = weights.groups[piece.group]
                only = variables[group[0]] if len(group) == 1 else None
                buffer = keras.Variable(
                    np.zeros(piece.shape, tf.as_dtype(piece.dtype).as_numpy_dtype),
                    dtype=piece.dtype,
                    name=only.name if only is not None else f"weights_{piece.group}",
                )
                if only is not None:
                    buffer.constraint = only.constraint
                buffers.append(buffer)
            clone = clone_optimizer(optimizer)
            if clone.weight_decay is not None:
                clone.exclude_from_weight_decay(
                    [b for b, piece in zip(buffers, mine, strict=True) if not piece.kind]
                )
            slots = build_optimizer(clone, buffers)
            by_row = {
                place: _make_row_optimizer(optimizer, piece, place, buffers[place], slots)
                for place, piece in enumerate(mine)
                if weights.items[weights.groups[piece.group][0]].cut
                and is_table(variables[weights.groups[piece.group][0]])
            }
            states = [
                tf.Variable(tf.zeros(piece.shape, piece.dtype), trainable=False)
                for piece in (state.pieces[index] for index in state.in_store(number))
            ]
        stores.append(VariableStore(device, buffers, states, clone, slots, by_row))
    return stores


def _make_row_optimizer(
    optimizer: Any, piece: Buffer, place: int, buffer: Any, slots: OptimizerSlots
) -> RowOptimizer:
    block = make_block(buffer)
    clone = clone_optimizer(optimizer)
    if clone.weight_decay is not None and not piece.kind:
        clone.exclude_from_weight_decay([block])
    own = build_optimizer(clone, [block])
    copies = [(block, buffer)]
    copies += [(own.by_weight[name][0], slots.by_weight[name][place]) for name in own.by_weight]
    return RowOptimizer(clone, block, copies, list(zip(own.others, slots.others, strict=True)))


def clone_optimizer(optimizer: Any) -> Any:
    """The same optimizer for other variables, without its clipping: that is done across stores."""
    config = optimizer.get_config()
    if "inner_optimizer" not in config:
        config |= {"clipnorm": None, "global_clipnorm": None, "clipvalue": None}
    try:
        return type(optimizer).from_config(config)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the optimizer {type(optimizer).__name__} cannot be made again from its config: "
            f"{error}. If it or its learning rate schedule is a class of yours, give it get_config "
            "and decorate it with @keras.saving.register_keras_serializable()"
        ) from None


def build_optimizer(optimizer: Any, variables: Sequence[Any]) -> OptimizerSlots:
    """Build it for these variables, and note which of its own variables belong to which."""
    slots = OptimizerSlots()
    positions = {id(variable): index for index, variable in enumerate(variables)}
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    add = inner.add_variable_from_reference

    def add_and_note(reference_variable: Any, name: str | None = None, **options: Any) -> Any:
        slot = add(reference_variable, name=name, **options)
        slots.by_weight.setdefault(name or "var", {})[positions[id(reference_variable)]] = slot
        return slot

    inner.add_variable_from_reference = add_and_note
    optimizer.build(list(variables))
    del inner.add_variable_from_reference
    noted = {id(slot) for slots_of in slots.by_weight.values() for slot in slots_of.values()}
    slots.others = [variable for variable in optimizer.variables if id(variable) not in noted]
    return slots


def clip(
    gradients: Sequence[Tensor], packing: FlatLayout, limits: Mapping[str, float | None]
) -> list[Tensor]:
    """Clip packed gradients as if each variable had its own; without limits, as they are.

    Rows that were looked up several times are there once afterwards.
    """
    gradients = [merge_rows(gradient) for gradient in gradients]
    value, norm, global_norm = (limits.get(key) for key in ("value", "norm", "global_norm"))
    if value is not None:
        gradients = [tf.clip_by_value(gradient, -value, value) for gradient in gradients]
    if norm is not None:
        gradients = _clip_each(gradients, packing, norm)
    if global_norm is not None:
        gradients, _ = tf.clip_by_global_norm(gradients, global_norm)
    return list(gradients)


def _clip_each(gradients: Sequence[Tensor], packing: FlatLayout, norm: float) -> list[Tensor]:
    """Clip by the norm of each variable's gradient, whichever pieces it is in."""
    by_row = [isinstance(gradient, tf.IndexedSlices) for gradient in gradients]
    whole = [None if rows else g for g, rows in zip(gradients, by_row, strict=True)]
    values = packing.unpack(whole)
    clipped = packing.join([v if v is None else tf.clip_by_norm(v, norm) for v in values])
    for group in {packing.pieces[place].group for place, rows in enumerate(by_row) if rows}:
        mine = [place for place, piece in enumerate(packing.pieces) if piece.group == group]
        parts, _ = tf.clip_by_global_norm([gradients[place] for place in mine], norm)
        for place, part in zip(mine, parts, strict=True):
            clipped[place] = part
    return clipped


def _is_large(variable: Any) -> bool:
    return VariableSpec(tuple(variable.shape), variable.dtype).nbytes >= LARGE_BYTES


def _is_decayed(optimizer: Any, variable: Any) -> bool:
    # Keras has no public way to ask which variables `exclude_from_weight_decay` named.
    return optimizer.weight_decay is not None and bool(optimizer._use_weight_decay(variable))
