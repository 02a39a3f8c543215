"""A scope in which variables are tensors, and `tf.GradientTape` treats them as variables."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import keras
import tensorflow as tf
from keras.src.backend.common.variables import AutocastScope
from tensorflow.python.eager import tape as tf_tape

from phalanx.train.types import KerasVariable, Tensor


class TapeScope(keras.StatelessScope):  # type: ignore[misc]
    """A `keras.StatelessScope` for code that computes gradients of Keras variables itself.

    A variable stands for one tensor, its source. A tape watches the source when the variable is
    read, and finds it in the attribute `handle`, where it finds the handles of other variables. A
    value that is assigned is attached to the source: as with any variable, gradients stop there.

    Args:
        mapping: The variables, each with its value.
        plain: Variables that no gradient is taken of, such as those of metrics.
        find_value: Returns the value of any other variable when it is first read; None: its own.
        refuse: Raises an error for an assignment to a variable that has no value here.
    """

    def __init__(
        self,
        mapping: Sequence[tuple[KerasVariable, Tensor]],
        plain: Sequence[tuple[KerasVariable, Tensor]],
        find_value: Callable[[KerasVariable], Tensor | None],
        refuse: Callable[[KerasVariable], None],
    ) -> None:
        super().__init__(plain, collect_losses=True)
        self._find_value = find_value
        self._refuse = refuse
        self._sources: dict[int, Tensor] = {}
        self._is_noting_access = False
        self.read: set[int] = set()
        """The ids of the variables that were read."""
        self.assigned: dict[int, KerasVariable] = {}
        """The variables that were assigned, by id; not those that `set_value` has updated."""
        self.assignments: Counter[int] = Counter()
        """How often each variable was assigned, by id."""
        for variable, value in mapping:
            self._put(variable, value)

    def get_current_value(self, variable: KerasVariable) -> Tensor | None:
        """Return a value for Keras, and let all tapes know that the variable was read."""
        key = id(variable)
        if not self._has(variable):
            return None
        source = self._sources.get(key)
        if self._is_noting_access:
            return source
        self.read.add(key)
        value = self.state_mapping[key]
        if source is None:
            return value
        if variable.trainable:
            self._note_access(variable)
        return value if value is source else _attach(value, source)

    def current(self, variable: KerasVariable) -> Tensor:
        """Return the value of a variable, without a read that tapes notice."""
        return self.state_mapping[id(variable)] if self._has(variable) else variable.value

    def is_source(self, variable: KerasVariable) -> bool:
        """Whether a variable has still the value that it had at first."""
        return self.state_mapping[id(variable)] is self._sources.get(id(variable))

    def add_update(self, update: tuple[KerasVariable, Tensor]) -> None:
        variable, value = update
        if not self._has(variable):
            self._refuse(variable)
        self.assigned[id(variable)] = variable
        self.assignments[id(variable)] += 1
        self.state_mapping[id(variable)] = value

    def set_value(self, variable: KerasVariable, value: Tensor) -> None:
        """Give a variable the value that an optimizer has computed."""
        self.state_mapping[id(variable)] = value

    def forget(self, variables: Sequence[KerasVariable]) -> None:
        """Find the values of variables again when they are read."""
        for variable in variables:
            self.state_mapping.pop(id(variable), None)
            self._sources.pop(id(variable), None)

    @contextlib.contextmanager
    def suspend(self) -> Iterator[None]:
        """Let variables be variables in the `with` block."""
        self.__exit__()
        try:
            yield
        finally:
            self.__enter__()

    def _has(self, variable: KerasVariable) -> bool:
        if id(variable) not in self.state_mapping:
            value = self._find_value(variable)
            if value is None:
                return False
            self._put(variable, value)
        return True

    def _put(self, variable: KerasVariable, value: Tensor) -> None:
        # A copy, so that no two variables have the same source.
        value = tf.identity(value)
        if value.dtype.is_floating:
            value.handle = value
            self._sources[id(variable)] = value
        self.state_mapping[id(variable)] = value

    def _note_access(self, variable: KerasVariable) -> None:
        self._is_noting_access = True
        try:
            # The cast of a mixed precision policy has no handle.
            with AutocastScope(None):
                # TensorFlow has no public function for this: what it calls in `tf.Variable`.
                tf_tape.variable_accessed(variable)
        finally:
            self._is_noting_access = False


def _attach(value: Tensor, source: Tensor) -> Tensor:
    """Return a value whose gradient is the gradient of a source."""

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def attach(_: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return tf.identity(value), lambda upstream: upstream

    attached = attach(source)
    attached.handle = source
    return attached
