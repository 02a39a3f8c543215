"""The model's variables on the host, and the slots of an optimizer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from phalanx.train.types import KerasVariable, Optimizer


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
    slots: OptimizerSlots = field(default_factory=OptimizerSlots)

    def build(self) -> None:
        """Create the variables of the optimizer."""
        self.slots = build_optimizer(self.optimizer, self.trainable)


def build_optimizer(optimizer: Optimizer, weights: Sequence[KerasVariable]) -> OptimizerSlots:
    """Build an optimizer for these weights, and find the weight that each of its slots belongs to.

    Keras names a slot `<path of its weight>_<name of the slot>`, and creates the slots of one name
    in the order of the weights, which tells weights of the same path apart.
    """
    optimizer.build(list(weights))
    # The longest prefix comes first: a path may begin with the path of another weight.
    prefixes = [(f"{w.path.replace('/', '_')}_", index) for index, w in enumerate(weights)]
    prefixes.sort(key=lambda item: -len(item[0]))
    slots = OptimizerSlots()
    for variable in optimizer.variables:
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


def inner_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer inside a LossScaleOptimizer, or the optimizer itself."""
    return getattr(optimizer, "inner_optimizer", optimizer)
