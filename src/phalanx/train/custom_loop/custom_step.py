"""A step that the user wrote whole, with gradients and update, as the session sees it."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.step.step_function import batch_length, read_means, sum_values

# A step tells its loss, and up to so many other values.
_VALUES = 16

Function = Callable[..., Any]


@dataclass(frozen=True)
class Copy:
    """A variable that is trained somewhere, and its copy in this process: what is saved."""

    value: Any
    trained: Any

    @property
    def shape(self) -> Any:
        """Of both."""
        return self.value.shape

    def numpy(self) -> Any:
        """The copy as it is."""
        return self.value.numpy()

    def assign(self, value: Any) -> None:
        """Change the copy."""
        self.value.assign(value)


@dataclass
class Variables:
    """Everything that was made in a session's scope, by name."""

    made: dict[str, Any] = field(default_factory=dict)
    copies: dict[str, Copy] = field(default_factory=dict)
    optimizer: Any = field(default_factory=tf.train.Checkpoint)
    """The optimizer's variables are among the others."""
    trainable: list[Any] = field(default_factory=list)
    state: list[Any] = field(default_factory=list)

    @property
    def host_variables(self) -> Variables:
        """What a session asks for."""
        return self

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Take note of every variable that is made."""

        def create(next_creator: Function, **settings: Any) -> Any:
            variable = next_creator(**settings)
            name = variable.name.partition(":")[0]
            while name in self.made:
                name += "_again"
            self.made[name] = variable
            return variable

        with tf.variable_creator_scope(create):
            yield

    @contextlib.contextmanager
    def forbid(self) -> Iterator[None]:
        """Variables that are made too late would be neither saved nor restored."""

        def refuse(next_creator: Function, **settings: Any) -> Any:
            raise ConfigurationError(
                f"the step makes a variable ({settings.get('name') or 'unnamed'}): make all of "
                "them before, in session.scope(); build the model there, and the optimizer with "
                "optimizer.build(model.trainable_variables)"
            )

        with tf.variable_creator_scope(refuse):
            yield

    def copy(self) -> None:
        """Make the copies in this process."""
        if not self.made:
            raise ConfigurationError(
                "no variable was made in session.scope(): make the model and the optimizer there"
            )
        for name, variable in self.made.items():
            value = tf.Variable(variable.numpy(), trainable=False, dtype=variable.dtype, name=name)
            self.copies[name] = Copy(value, variable)

    def push(self) -> None:
        """Send the copies to where they are trained."""
        for copy in self.copies.values():
            copy.trained.assign(copy.numpy())

    def pull(self) -> None:
        """Bring what was trained to the copies."""
        for copy in self.copies.values():
            copy.assign(copy.trained.numpy())

    def learning_rate(self) -> float:
        """That of the first optimizer; NaN if there is none."""
        rate = self._find_rate()
        return float("nan") if rate is None else float(rate.numpy())

    def set_learning_rate(self, value: float) -> None:
        """Change it, if it is no schedule."""
        rate = self._find_rate()
        if rate is None:
            raise ConfigurationError("no optimizer in session.scope() has a learning rate to set")
        rate.assign(value)

    def _find_rate(self) -> Any:
        rates = [v for name, v in self.made.items() if name.endswith("learning_rate")]
        return next(iter(rates), None)


class CustomStep:
    """What the user's step reports, summed over replicas, steps and hosts."""

    model: Any = None
    experiment: Any = None

    @property
    def report_size(self) -> int:
        """How long a report is."""
        return 1 + 2 * (1 + _VALUES)

    def __init__(self, variables: Variables) -> None:
        self.variables = variables
        self.element_spec: Any = None
        self._names = ["loss"]

    @property
    def named(self) -> dict[str, Copy]:
        """What is saved."""
        return self.variables.copies

    def report(self, returned: Any, batch: Any) -> Any:
        """The vector of what a step returned: a loss, or a dict with it."""
        values = dict(returned) if isinstance(returned, dict) else {"loss": returned}
        if values.get("loss") is None:
            raise ConfigurationError(
                f"the step returned {returned!r}: return the loss, or a dict that has it as 'loss'"
            )
        # Several steps of one session, each with values of its own, share the places.
        self._names += sorted(set(values) - set(self._names))
        if len(self._names) > 1 + _VALUES:
            raise ConfigurationError(f"steps report at most {_VALUES} values beside the loss")
        count = tf.cast(batch_length(batch), tf.float32) if batch is not None else 1.0
        means = {n: tf.reduce_mean(tf.cast(value, tf.float32)) for n, value in values.items()}
        return tf.stack([count, *sum_values(self._places(), means, count)])

    def read_report(self, report: np.ndarray[Any, Any]) -> dict[str, float]:
        """The means over examples that a sum of reports stands for."""
        return read_means(self._places(), report[1:])

    def _places(self) -> list[str]:
        return [*self._names, *[""] * (1 + _VALUES - len(self._names))]


def call_step(step: Function, batch: Any) -> Any:
    """A step takes a batch, or nothing if the session has no data."""
    if batch is None and inspect.signature(step).parameters:
        raise ConfigurationError(
            "the step takes a batch, but the session has no data: give it with session.dataset(...)"
        )
    return step() if batch is None else step(batch)
