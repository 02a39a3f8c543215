"""Updates that a `train_step` makes while it runs: the rest of the step sees the new weights."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from phalanx.train.step.optimizer_calls import OptimizerCall
from phalanx.train.step.tape_scope import TapeScope
from phalanx.train.types import KerasVariable, Tensor
from phalanx.train.variables.device_variables import DeviceVariables

Perform: TypeAlias = Callable[[DeviceVariables, list[Tensor]], None]
Synchronize: TypeAlias = Callable[[list[Tensor], Perform], None]
"""Averages tensors over all replicas, and performs an update with them on each copy."""


class InPlaceUpdates:
    """Executes the calls of optimizers in one replica's step, on its device variables."""

    def __init__(
        self, scope: TapeScope, variables: DeviceVariables, synchronize: Synchronize
    ) -> None:
        self._scope = scope
        self._variables = variables
        self._synchronize = synchronize
        self.gradients: list[Tensor] = []
        """The gradients of this replica, of all calls."""

    def apply(self, call: OptimizerCall) -> None:
        """Average the gradients of a call, apply them, and read the new weights."""
        self.write_assigned()
        pairs = zip(call.gradients, call.variables, strict=True)
        convert = self._variables.convert_gradient
        given = [(convert(g, v), v) for g, v in pairs if g is not None]
        gradients, trained = [g for g, _ in given], [v for _, v in given]
        self.gradients += gradients

        def perform(copy: DeviceVariables, averages: list[Tensor]) -> None:
            copy.apply_call(call.optimizer, averages, trained)

        self._run(gradients, perform, trained)
        self._scope.forget(call.optimizer.variables)

    def write_assigned(self) -> None:
        """Write what the step has assigned to weights or to variables of optimizers.

        As other state, it is averaged over the replicas.
        """
        stored = [v for v in self._scope.assigned.values() if self._variables.is_stored(v)]
        for variable in stored:
            del self._scope.assigned[id(variable)]
        if not stored:
            return
        values = [self._scope.current(variable) for variable in stored]

        def perform(copy: DeviceVariables, averages: list[Tensor]) -> None:
            for variable, value in zip(stored, averages, strict=True):
                copy.write_variable(variable, value)

        self._run(values, perform, stored)

    def _run(
        self, tensors: list[Tensor], perform: Perform, changed: Sequence[KerasVariable]
    ) -> None:
        """Perform an update on all replicas, and read the variables that it changes."""
        with self._scope.suspend():
            self._synchronize(tensors, perform)
            values = [self._variables.read_variable(variable) for variable in changed]
        for variable, value in zip(changed, values, strict=True):
            self._scope.set_value(variable, value)
