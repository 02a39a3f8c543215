"""Stores: the buffers of one device or parameter server, and the optimizer that updates them."""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import keras
import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.autograph import unconverted
from phalanx.train.types import KerasVariable, Optimizer, Tensor, TFVariable
from phalanx.train.variables.accumulated_gradient import AccumulatedGradient
from phalanx.train.variables.described_variable import DescribedVariable, refer_by_description
from phalanx.train.variables.flat_layout import Buffer, FlatLayout, VariableSpec
from phalanx.train.variables.host_variables import (
    AVERAGE_STEP,
    ELEMENTWISE,
    HostVariables,
    OptimizerSlots,
    build_optimizer,
    build_optimizers,
    built_variables,
    inner_optimizer,
    list_variables,
)
from phalanx.train.variables.index_shard import IndexShard, Sightings
from phalanx.train.variables.row_optimizer import (
    RowAverages,
    RowOptimizer,
    WaitingRows,
    make_block,
)
from phalanx.train.variables.row_snapshot import RowSnapshot
from phalanx.train.variables.sparse_tables import is_table
from phalanx.train.variables.table import Table
from phalanx.train.variables.table_index import make_changes

# A variable of this size gets buffers of its own, so that its sparse gradients stay sparse.
LARGE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class VariableStore:
    """The buffers of one device, or of one parameter server, and their optimizer."""

    device: str
    weights: list[KerasVariable]
    state: list[TFVariable]
    optimizer: Optimizer
    slots: OptimizerSlots
    row_optimizers: dict[int, RowOptimizer] = field(default_factory=dict)
    """By their position in `weights`: the buffers of sparse tables."""
    optimizers: list[Optimizer] = field(default_factory=list)
    """The optimizers of a step that calls them itself, in the order of the host variables."""
    indexes: dict[int, IndexShard] = field(default_factory=dict)
    """By their position in `weights`: the indexes of growing tables."""
    idle_optimizers: list[Optimizer] = field(default_factory=list)
    """The optimizers of tables that have no row here: only their steps are counted."""

    @unconverted
    def apply(self, gradients: Sequence[Tensor]) -> None:
        """Update the weights, on the device that holds them."""
        dense = [i for i in range(len(self.weights)) if i not in self.row_optimizers]
        with tf.device(self.device):
            for position, row_optimizer in self.row_optimizers.items():
                row_optimizer.apply(gradients[position])
            for idle in self.idle_optimizers:
                idle.iterations.assign_add(1)
            if dense:
                self.optimizer.apply(
                    [gradients[i] for i in dense], [self.weights[i] for i in dense]
                )
                return
            shared = [each for each in self.row_optimizers.values() if not each.is_own]
            if shared:
                shared[-1].advance_shared()
            else:
                self.optimizer.iterations.assign_add(1)

    @unconverted
    def accumulate(self, position: int, gradient: Tensor, scale: Tensor) -> AccumulatedGradient:
        """Return the gradient of a buffer with those that its optimizer has accumulated.

        Args:
            position: The position of the buffer in `weights`.
            gradient: The gradient of the loss, which is multiplied by `scale`.
            scale: The scale of the loss.
        """
        inner = inner_optimizer(self.optimizer)
        steps = inner.gradient_accumulation_steps
        sums = self.slots.by_name["gradient_accumulator"].get(position)
        row_optimizer = self.row_optimizers.get(position)
        with tf.device(self.device):
            is_update = (inner._iterations.value + 1) % steps == 0
            if sums is None:
                earlier = None
            elif row_optimizer is None or row_optimizer.waiting is None:
                # Keras adds a sparse gradient to a dense sum.
                gradient, earlier = tf.convert_to_tensor(gradient), sums.value * scale
            else:
                gradient = row_optimizer.waiting.add(gradient)
                earlier = tf.gather(sums.value, gradient.indices) * scale
        return AccumulatedGradient(gradient, earlier, steps, is_update, self.device)

    def finalize(self) -> None:
        """Replace the weights by their moving averages, if the optimizer keeps such averages."""
        if not self.row_optimizers:
            self.optimizer.finalize_variable_values(built_variables(self.optimizer))
            return
        for row_optimizer in self.row_optimizers.values():
            row_optimizer.finish_averages()
        for position, average in self.slots.by_name.get("average", {}).items():
            if position not in self.row_optimizers:
                self.weights[position].assign(average.value)

    @unconverted
    def drop_stale(
        self, gradients: Sequence[Tensor], seen: Mapping[int, Sightings]
    ) -> list[Tensor]:
        """Leave out gradients of rows that belong to another id than when they were looked up."""
        return [
            self.indexes[position].drop_stale(gradient, seen[position].clock)
            if position in seen
            else gradient
            for position, gradient in enumerate(gradients)
        ]

    @unconverted
    def grow(self, position: int, sightings: Sightings) -> None:
        """Count ids of a growing table, and give rows to new ones, on the device of the rows."""
        index = self.indexes[position]
        with tf.device(self.device):
            ids, rows = index.observe(sightings.ids, sightings.counts)
            self.row_optimizers[position].reset(rows, index.make_rows(ids))


def plan_weights(
    variables: Sequence[KerasVariable],
    optimizer: Optimizer,
    stores: int,
    disconnected: Collection[int] = (),
    looked_up: Collection[int] = (),
    separate: bool = False,
    own: Mapping[int, Optimizer] = MappingProxyType({}),
    limit: int | None = None,
    pack_bytes: int | None = None,
) -> FlatLayout:
    """Concatenate the weights where the optimizer allows it; give large ones their own buffers.

    With `separate`, each weight has one buffer of its own, and so has each weight at a position in
    `looked_up`. `own` has the optimizers of single tables, by their position. What each step reads
    as a whole has no buffer of more than `limit` bytes, if it can be split. With `pack_bytes`, the
    variables of about so many bytes share a buffer.

    A weight without a gradient is not decayed either: Keras leaves it as it is.
    """
    specs = []
    shared_bytes = 0
    for position, variable in enumerate(variables):
        updated_by = own.get(position, optimizer)
        elementwise = type(updated_by) in ELEMENTWISE and not separate
        if position in own and not elementwise:
            raise ConfigurationError(
                f"the optimizer of {variable.path} is {type(updated_by).__name__}, which does not "
                f"update each element by itself: use {', '.join(o.__name__ for o in ELEMENTWISE)}"
            )
        decays = position not in disconnected and _has_weight_decay(updated_by, variable)
        spec = VariableSpec(tuple(variable.shape), variable.dtype, decays)
        may_split = elementwise and variable.constraint is None
        is_large = isinstance(variable, DescribedVariable) or spec.nbytes >= LARGE_BYTES
        is_separate = is_large or position in looked_up
        if isinstance(variable, Table) and variable.index is not None:
            spec = replace(spec, unit=variable.index.ways, tail=variable.index.shared_rows)
        is_flat = may_split and not is_separate
        pack = shared_bytes // pack_bytes if pack_bytes and is_flat else 0
        shared_bytes += spec.nbytes if is_flat else 0
        specs.append(
            replace(
                spec,
                flat=is_flat,
                pack=pack,
                split=may_split and is_large,
                limit=None if is_table(variable) else limit,
                looked_up=position in looked_up,
            )
        )
    return FlatLayout.plan(specs, stores)


def plan_state(
    variables: Sequence[KerasVariable],
    stores: int = 1,
    fixed: Collection[int] = (),
    limit: int | None = None,
) -> FlatLayout:
    """Concatenate the variables that are not trainable; keep those apart that no step changes."""
    specs = [
        VariableSpec(tuple(variable.shape), variable.dtype, fixed=position in fixed, limit=limit)
        for position, variable in enumerate(variables)
    ]
    return FlatLayout.plan(specs, stores)


def make_stores(
    devices: Sequence[str],
    layout: FlatLayout,
    state_layout: FlatLayout,
    host_variables: HostVariables,
) -> list[VariableStore]:
    """Create one store on each device, with the buffers that the layouts place there."""
    variables, own = host_variables.trainable, host_variables.own_optimizers()
    stores = []
    for number, device in enumerate(devices):
        with tf.device(device):
            buffers = [layout.buffers[index] for index in layout.in_store(number)]
            weights = [_make_weight(buffer, layout, variables) for buffer in buffers]
            # The position of the first variable in each buffer: a table is the only one.
            held = [layout.groups[buffer.group][0] for buffer in buffers]
            clone = clone_optimizer(host_variables.optimizer)
            # Every store has all optimizers, also of tables without a row in it.
            clones = {position: clone_optimizer(each) for position, each in own.items()}
            for each in (clone, *clones.values()):
                placed = zip(weights, buffers, held, strict=True)
                mine = [(w, b) for w, b, position in placed if clones.get(position, clone) is each]
                _exclude_from_weight_decay(each, [w for w, b in mine if not b.weight_decay])
            owned = [
                (each, [i for i, other in enumerate(held) if other == position])
                for position, each in clones.items()
            ]
            slots = build_optimizers(clone, weights, owned)
            row_optimizers = {
                index: _make_row_optimizer(
                    own.get(held[index], host_variables.optimizer), buffer, index, weights[index],
                    slots, clones.get(held[index], clone), held[index] in own,
                    variables[held[index]],
                )
                for index, buffer in enumerate(buffers)
                if layout.specs[held[index]].split and is_table(variables[held[index]])
            }  # fmt: skip
            _leave_rows_alone(clone, [weights[index] for index in row_optimizers])
            state = _make_state(state_layout, number)
            indexes = _make_indexes(layout, number, variables)
            idle = [each for position, each in clones.items() if position not in held]
        store = VariableStore(device, weights, state, clone, slots, row_optimizers)
        stores.append(replace(store, indexes=indexes, idle_optimizers=idle))
    return stores


def _make_indexes(
    layout: FlatLayout, store: int, variables: Sequence[KerasVariable]
) -> dict[int, IndexShard]:
    """Create the parts of indexes that belong to the rows in a store, on the current device."""
    indexes = {}
    for position, number in enumerate(layout.in_store(store)):
        buffer = layout.buffers[number]
        table = variables[layout.groups[buffer.group][0]]
        if isinstance(table, Table) and table.index is not None:
            before = [b.shape[0] for b in layout.buffers[:number] if b.group == buffer.group]
            first, ways = sum(before) // table.index.ways, table.index.ways
            buckets = min(buffer.shape[0] // ways, table.index.buckets - first)
            indexes[position] = table.index.make_shard(first, buckets, buffer.shape[0])
    return indexes


def make_in_place_store(
    device: str,
    layout: FlatLayout,
    state_layout: FlatLayout,
    host_variables: HostVariables,
) -> VariableStore:
    """Create a store for a step that calls its optimizers itself, each for some of the weights."""
    variables = host_variables.trainable
    with tf.device(device):
        weights = [_make_weight(buffer, layout, variables) for buffer in layout.buffers]
        by_id = {
            id(variables[layout.groups[buffer.group][0]]): weight
            for buffer, weight in zip(layout.buffers, weights, strict=True)
        }
        clones = []
        for optimizer in host_variables.optimizers:
            clone = clone_optimizer(optimizer, keeps_clipping=True)
            trained = built_variables(optimizer)
            excluded = [v for v in trained if not _has_weight_decay(optimizer, v)]
            _exclude_from_weight_decay(clone, [by_id[id(v)] for v in excluded])
            clone.build([by_id[id(v)] for v in trained])
            clones.append(clone)
        state = _make_state(state_layout, 0)
    main = next(
        clone for clone, optimizer in zip(clones, host_variables.optimizers, strict=True)
        if optimizer is host_variables.optimizer
    )  # fmt: skip
    slots = OptimizerSlots(shared=list_variables(clones))
    return VariableStore(device, weights, state, main, slots, optimizers=clones)


def _make_weight(
    buffer: Buffer, layout: FlatLayout, variables: Sequence[KerasVariable]
) -> KerasVariable:
    group = layout.groups[buffer.group]
    only = variables[group[0]] if len(group) == 1 else None
    # Optimizers such as Muon treat a variable by its path.
    *scopes, name = (only.path if only is not None else f"weights_{buffer.group}").split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        weight = keras.Variable("zeros", shape=buffer.shape, dtype=buffer.dtype, name=name)
    if only is not None:
        weight.constraint = only.constraint
    return weight


def _make_row_optimizer(
    optimizer: Optimizer,
    buffer: Buffer,
    position: int,
    weight: KerasVariable,
    slots: OptimizerSlots,
    stored: Optimizer,
    is_own: bool,
    table: Table,
) -> RowOptimizer:
    """Make the optimizer of some rows; `stored` is the one that has their slots in this store."""
    _check_row_optimizer(optimizer, weight.path, is_own)
    block = make_block(weight)
    clone = clone_optimizer(optimizer)
    _exclude_from_weight_decay(clone, [] if buffer.weight_decay else [block])
    local = build_optimizer(clone, [block])
    copies = [(block, weight)]
    initial = [np.asarray(local.by_name[name][0].value)[:1] for name in local.by_name]
    copies += [(local.by_name[name][0], slots.by_name[name][position]) for name in local.by_name]
    averages = waiting = None
    if clone.use_ema:
        step = keras.Variable("zeros", shape=(block.shape[0], 1), dtype="int64")
        stored_step = keras.Variable("zeros", shape=(weight.shape[0], 1), dtype="int64")
        slots.by_name.setdefault(AVERAGE_STEP, {})[position] = stored_step
        copies.append((step, stored_step))
        initial.append(np.zeros([1, 1], np.int64))
        averages = RowAverages(clone, block, local.by_name["average"][0], step)
    ids = {id(variable) for variable in stored.variables}
    shared = [variable for variable in slots.shared if id(variable) in ids]
    pairs = list(zip(local.shared, shared, strict=True))
    if clone.gradient_accumulation_steps:
        sums = slots.by_name["gradient_accumulator"][position]
        waiting = WaitingRows(clone, stored._iterations, sums, make_changes(buffer.shape[0]))
    changed = make_changes(buffer.shape[0]) if table.tracks_changes else None
    stored_rows = [copied.value for _, copied in copies]
    snapshot = RowSnapshot(stored_rows) if table.is_large else None
    return RowOptimizer(
        clone, block, copies, pairs, initial, is_own, changed, snapshot, averages, waiting
    )


def _leave_rows_alone(optimizer: Optimizer, weights: Sequence[KerasVariable]) -> None:
    """Keep an optimizer from updating what belongs to row optimizers.

    In each step, Keras updates the averages of all weights that an optimizer was built with, and
    sets all of its accumulated gradients to zero after an update.
    """
    built = [id(variable) for variable in built_variables(optimizer)]
    inner = inner_optimizer(optimizer)
    for weight in weights:
        if id(weight) in built and inner.use_ema:
            inner._model_variables_moving_average[built.index(id(weight))] = None
        if id(weight) in built and inner.gradient_accumulation_steps:
            inner._accumulated_gradients[built.index(id(weight))] = None


def _check_row_optimizer(optimizer: Optimizer, path: str, is_own: bool) -> None:
    """Refuse settings of an optimizer that rows cannot have."""
    settings = ["ema_overwrite_frequency"]
    if is_own:
        settings = ["use_ema", "gradient_accumulation_steps"]
    for setting in settings:
        value = getattr(optimizer, setting)
        if value and (is_own or optimizer.use_ema):
            reason = (
                "set it for the optimizer of the model instead"
                if is_own
                else "which would overwrite all of its rows: leave it out, and the weights become "
                "their averages at the end"
            )
            raise ConfigurationError(
                f"{setting} of the optimizer is {value}, but {path} is a sparse table"
                f"{': ' if is_own else ', '}{reason}"
            )


def _make_state(layout: FlatLayout, store: int) -> list[TFVariable]:
    buffers = [layout.buffers[index] for index in layout.in_store(store)]
    return [tf.Variable(tf.zeros(b.shape, b.dtype), trainable=False) for b in buffers]


def clone_optimizer(optimizer: Optimizer, keeps_clipping: bool = False) -> Optimizer:
    """Make the same optimizer for other variables, without its clipping, which spans the stores."""
    config = optimizer.get_config()
    if "inner_optimizer" not in config and not keeps_clipping:
        config |= {"clipnorm": None, "global_clipnorm": None, "clipvalue": None}
    try:
        return type(optimizer).from_config(config)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the optimizer {type(optimizer).__name__} cannot be created again from its config: "
            f"{error}. If it or its learning rate schedule is a class of yours, give it get_config "
            "and decorate it with @keras.saving.register_keras_serializable()"
        ) from None


def _has_weight_decay(optimizer: Optimizer, variable: KerasVariable) -> bool:
    inner = inner_optimizer(optimizer)
    # Keras has no public way to ask which variables `exclude_from_weight_decay` named. It matches
    # the names of TensorFlow's variables, which include the path of the layer.
    with refer_by_description():
        return inner.weight_decay is not None and bool(inner._use_weight_decay(variable.value))


def _exclude_from_weight_decay(optimizer: Optimizer, weights: Sequence[KerasVariable]) -> None:
    inner = inner_optimizer(optimizer)
    if inner.weight_decay is not None:
        inner.exclude_from_weight_decay(list(weights))
