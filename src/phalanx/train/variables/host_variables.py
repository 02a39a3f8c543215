"""The model's variables on the host, and the slots of an optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import keras

from phalanx.errors import ConfigurationError
from phalanx.train.types import KerasVariable, Optimizer
from phalanx.train.variables.described_variable import DescribedVariable, build_described
from phalanx.train.variables.table import Table
from phalanx.train.variables.table_index import TableIndex

# These treat each element separately, so a buffer of many variables is updated as each would be.
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

AVERAGE_STEP = "average_step"
"""The slot that says after which step the moving average of a row was computed last."""


@dataclass
class OptimizerSlots:
    """The variables of an optimizer."""

    by_name: dict[str, dict[int, KerasVariable]] = field(default_factory=dict)
    """The slots: by their name, such as `momentum`, and by the position of their weight."""
    shared: list[KerasVariable] = field(default_factory=list)
    """The variables that belong to no single weight, such as the iteration count."""


@dataclass
class HostVariables:
    """The model's variables on the host: what is saved, restored and exported."""

    trainable: list[KerasVariable]
    state: list[KerasVariable]
    """The variables that are not trainable, such as the averages of batch normalization."""
    optimizer: Optimizer
    disconnected: frozenset[int] = frozenset()
    """The positions in `trainable` of the weights that the loss does not depend on."""
    looked_up: frozenset[int] = frozenset()
    """The positions in `trainable` of the weights whose optimizer needs each lookup of a row."""
    fixed: frozenset[int] = frozenset()
    """The positions in `state` of the variables that no training step assigns: frozen weights."""
    optimizers: list[Optimizer] = field(default_factory=list)
    """All optimizers of a step that calls them itself; they are built already. Else empty."""
    finalizes: bool = True
    """Whether the weights become their moving averages at the end, if the optimizer has any."""
    trains: bool = True
    """Whether the variables will be trained: an evaluation needs no slots."""
    slots: OptimizerSlots = field(default_factory=OptimizerSlots)

    def own_optimizers(self) -> dict[int, Optimizer]:
        """Return the optimizers that tables have of their own, by the position of the table."""
        tables = enumerate(self.trainable) if self.trains else ()
        return {
            position: table.optimizer
            for position, table in tables
            if isinstance(table, Table) and table.optimizer is not None
        }

    def all(self) -> list[KerasVariable]:
        """Return the model's variables and the optimizer's."""
        by_weight = self.slots.by_name.values()
        slots = [slot for by_position in by_weight for slot in by_position.values()]
        indexes = [table for index in self.indexes() for table in index.tables]
        return [*self.trainable, *self.state, *self.slots.shared, *slots, *indexes]

    def described(self) -> list[DescribedVariable]:
        """Return the variables that the host only describes: weights, slots and indexes."""
        return [variable for variable in self.all() if isinstance(variable, DescribedVariable)]

    def indexes(self) -> list[TableIndex]:
        """Return the indexes of the growing tables."""
        tables = [variable for variable in self.trainable if isinstance(variable, Table)]
        return [table.index for table in tables if table.index is not None]

    def build(self) -> None:
        """Create the variables of the optimizers."""
        own = self.own_optimizers()
        if own:
            self._check_own_optimizers(self.trainable[next(iter(own))])
        if self.optimizers:
            self.slots = OptimizerSlots(shared=list_variables(self.optimizers))
        else:
            owned = [(optimizer, [position]) for position, optimizer in own.items()]
            self.slots = build_optimizers(self.optimizer, self.trainable, owned)
            self._add_average_steps(own)

    def _add_average_steps(self, own: Mapping[int, Optimizer]) -> None:
        """Describe a slot for each table that has moving averages, and save it as the others."""
        if not self.optimizer.use_ema or type(self.optimizer) not in ELEMENTWISE:
            return
        steps: dict[int, KerasVariable] = {}
        for position, table in enumerate(self.trainable):
            if isinstance(table, Table) and position not in own:
                if table.average_step is None:
                    table.average_step = table.make_average_step()
                    self.optimizer._track_variable(table.average_step)
                steps[position] = table.average_step
        ids = {id(step) for step in steps.values()}
        self.slots.shared = [v for v in self.slots.shared if id(v) not in ids]
        if steps:
            self.slots.by_name[AVERAGE_STEP] = steps

    def _check_own_optimizers(self, table: KerasVariable) -> None:
        """Refuse what does not go together with an optimizer of a single table."""
        problem = ""
        if self.optimizers:
            problem = "the train_step of the model calls its optimizers itself"
        elif isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
            problem = "mixed_precision is float16, and only one optimizer can scale the loss"
        elif self.optimizer.built and any(v is table for v in built_variables(self.optimizer)):
            problem = "the optimizer of the model has been built for this table before"
        if problem:
            raise ConfigurationError(
                f"{table.path} has an optimizer of its own, but {problem}: leave out `optimizer` "
                "of its layer"
            )


def list_variables(optimizers: Sequence[Optimizer]) -> list[KerasVariable]:
    """Return the variables of several optimizers, in order."""
    return [variable for optimizer in optimizers for variable in optimizer.variables]


def build_optimizers(
    optimizer: Optimizer,
    weights: Sequence[KerasVariable],
    owned: Sequence[tuple[Optimizer, Sequence[int]]],
) -> OptimizerSlots:
    """Build an optimizer, and those of single weights, which are given with their positions."""
    taken = {position for _, positions in owned for position in positions}
    rest = [position for position in range(len(weights)) if position not in taken]
    slots = OptimizerSlots()
    for each, positions in ((optimizer, rest), *owned):
        built = build_optimizer(each, [weights[position] for position in positions])
        for name, by_weight in built.by_name.items():
            moved = {positions[number]: slot for number, slot in by_weight.items()}
            slots.by_name.setdefault(name, {}).update(moved)
        slots.shared += built.shared
    return slots


def build_optimizer(optimizer: Optimizer, weights: Sequence[KerasVariable]) -> OptimizerSlots:
    """Build an optimizer for these weights, and find the weight that each of its slots belongs to.

    Keras names a slot `<path of its weight>_<name of the slot>`, and creates the slots of one name
    in the order of the weights, which tells weights of the same path apart.
    """
    if not optimizer.built:
        build_described(optimizer, weights)
    # The longest prefix comes first: a path may begin with the path of another weight.
    prefixes = [(f"{w.path.replace('/', '_')}_", index) for index, w in enumerate(weights)]
    prefixes.sort(key=lambda item: -len(item[0]))
    slots = OptimizerSlots()
    factors = _find_factors(inner_optimizer(optimizer))
    for variable in optimizer.variables:
        if id(variable) in factors:
            name, index = factors[id(variable)]
            slots.by_name.setdefault(name, {})[index] = variable
            continue
        for prefix, index in prefixes:
            name = variable.name.removeprefix(prefix)
            if (
                name != variable.name
                and tuple(variable.shape) == tuple(weights[index].shape)
                and index not in slots.by_name.get(name, {})
            ):
                slots.by_name.setdefault(name, {})[index] = variable
                break
        else:
            slots.shared.append(variable)
    return slots


def _find_factors(optimizer: Optimizer) -> dict[int, tuple[str, int]]:
    """Return the name and the weight of each slot of Adafactor that is smaller than its weight.

    Adafactor names these slots only after their weights.
    """
    if not isinstance(optimizer, keras.optimizers.Adafactor):
        return {}
    by_name = {"row_factor": optimizer._r, "column_factor": optimizer._c}
    return {
        id(slot): (name, index)
        for name, slots in by_name.items()
        for index, slot in enumerate(slots)
    }


def built_variables(optimizer: Optimizer) -> list[KerasVariable]:
    """Return the variables that an optimizer was built with."""
    return list(inner_optimizer(optimizer)._trainable_variables)


def needs_lookups(optimizer: Optimizer) -> bool:
    """Whether an update depends on the gradient of each lookup of a row, and not on their sum.

    Keras does not sum the entries of a sparse gradient before it squares or clips them.
    """
    inner = inner_optimizer(optimizer)
    if inner.loss_scale_factor is not None:
        # Keras cannot divide a sparse gradient by this factor.
        return False
    clips = inner.clipnorm or inner.clipvalue or inner.global_clipnorm
    return bool(clips) or type(inner) not in (keras.optimizers.SGD, keras.optimizers.Lion)


def inner_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer inside a LossScaleOptimizer, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)
