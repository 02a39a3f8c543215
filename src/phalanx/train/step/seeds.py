"""Random numbers: the states of seed generators, which each step computes from its number.

With one replica, a step gets the states that Keras would have after as many steps, so that layers
such as Dropout draw the same numbers. Every other replica has seeds of its own.
"""

from collections import Counter
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

from phalanx.train.autograph import unconverted
from phalanx.train.types import Array, KerasVariable, Tensor

UNCOUNTED = 1_000_003
"""More than any step draws, where it is not known how often one does."""


def is_seed(variable: KerasVariable) -> bool:
    """Whether a variable is the state of a seed generator."""
    return variable.path.endswith("seed_generator_state") and tuple(variable.shape) == (2,)


def find_global_seed() -> list[KerasVariable]:
    """Return the state that random functions of Keras use without a seed, if any has used it."""
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return [] if generator is None else [generator.state]


class CountingScope(keras.StatelessScope):  # type: ignore[misc]
    """A scope that counts how often each variable is assigned."""

    def __init__(self, mapping: Sequence[tuple[KerasVariable, Tensor]]) -> None:
        super().__init__(mapping, collect_losses=True)
        self._counts: Counter[int] = Counter()

    def add_update(self, update: tuple[KerasVariable, Tensor]) -> None:
        self._counts[id(update[0])] += 1
        super().add_update(update)

    @unconverted
    def count(self, variable: KerasVariable) -> int:
        return self._counts[id(variable)]


@unconverted
def make_seed(
    dtype: str, state: Array, replica: Tensor | int, step: Tensor | int, draws: int = UNCOUNTED
) -> Tensor:
    """Return a seed that is unique to a replica and a step, and the same if the step runs again."""
    offset = tf.stack([tf.cast(replica, tf.int64), tf.cast(step, tf.int64) * draws])
    return tf.cast(state + offset, dtype)


class SeedStates:
    """The states of all seed generators of a model, by the number of the step.

    Args:
        draws: The states, and how often one step draws from each generator.
    """

    def __init__(self, draws: Sequence[tuple[KerasVariable, int]] = ()) -> None:
        self._states = [(v, np.asarray(v.numpy()), count) for v, count in draws]

    def at(self, replica: Tensor | int, step: Tensor | int) -> list[tuple[KerasVariable, Tensor]]:
        """Return the states with which a replica begins a step."""
        return [
            (variable, make_seed(variable.dtype, state, replica, step, draws))
            for variable, state, draws in self._states
        ]

    def advance(self, steps: int) -> None:
        """Leave the states that the next training of the same model continues with."""
        for variable, state, draws in self._states:
            variable.assign(state + np.array([0, steps * draws]))
