"""Updates of the parameter servers that are numbered, so that each of them is applied once.

A call may be lost when some of its updates have been applied: its worker has died, or the answers
to its updates do not arrive. The worker then reads the batches of that call again, and each has
the same number as before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import tensorflow as tf

from phalanx.train.autograph import unconverted
from phalanx.train.engines.lock import Lock
from phalanx.train.step.state_updates import StateUpdate
from phalanx.train.types import KerasVariable, Tensor, TFVariable
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.index_shard import Sightings
from phalanx.train.variables.packing import send_slices


@dataclass(frozen=True)
class NumberedUpdates:
    """The updates of some variables.

    Attributes:
        variables: The variables.
        locks: One for each parameter server.
        expected: On each parameter server, the number that the next update of each trainer has.
        counter: How many updates the first parameter server has applied, with those before it
            was started.
        skipped: How many it has skipped because it had applied them before.
        replicas: The same updates, of copies of the variables.
    """

    variables: DeviceVariables
    locks: list[Lock]
    expected: list[TFVariable]
    counter: TFVariable
    skipped: TFVariable
    replicas: tuple[NumberedUpdates, ...] = ()

    @classmethod
    def place(
        cls, variables: DeviceVariables, trainers: int, copies: Sequence[DeviceVariables] = ()
    ) -> NumberedUpdates:
        """Create the locks and numbers on the devices of the variables."""
        locks, expected = [], []
        for store in variables.stores:
            with tf.device(store.device):
                locks.append(Lock())
                expected.append(tf.Variable(tf.zeros([trainers], tf.int64), trainable=False))
        with tf.device(variables.stores[0].device):
            counter, skipped = (tf.Variable(0, dtype=tf.int64, trainable=False) for _ in range(2))
        replicas = tuple(cls.place(copy, trainers) for copy in copies)
        return cls(variables, locks, expected, counter, skipped, replicas)

    def read_expected(self, lost: Collection[str] = ()) -> list[int]:
        """Return the number that the next update of each trainer has, where most were applied.

        Without parameter servers on devices that are lost, their replicas are asked.
        """
        numbers = [
            variable.numpy()
            for updates in (self, *self.replicas)
            for store, variable in zip(updates.variables.stores, updates.expected, strict=True)
            if store.device not in lost and (lost or updates is self)
        ]
        highest = np.max(numbers, axis=0)
        return [int(number) for number in highest]

    def take_skipped(self) -> int:
        """Return how many updates were skipped since the last call."""
        skipped = int(self.skipped.numpy())
        self.skipped.assign_sub(skipped)
        return skipped

    @unconverted
    def apply(
        self,
        gradients: list[Tensor],
        updates: list[StateUpdate],
        sightings: Sequence[Sightings],
        origin: Tensor,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Update the parameter servers; return the new dense buffers, and the changing state.

        `origin` is the number of the trainer, and that of its batch.
        """
        gradients = self.variables.clip(gradients)
        updated = self._apply_clipped(gradients, updates, sightings, origin)
        # TensorFlow frees locks in the order in which a function asks for them.
        for replica in self.replicas:
            replica._apply_clipped(gradients, updates, sightings, origin, is_replica=True)
        return updated

    @unconverted
    def _apply_clipped(
        self,
        gradients: list[Tensor],
        updates: list[StateUpdate],
        sightings: Sequence[Sightings],
        origin: Tensor,
        is_replica: bool = False,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Update one copy of the variables; return its dense buffers, and its changing state.

        Nobody reads those of a replica.
        """
        variables = self.variables
        updated: list[list[Tensor]] = []
        state_buffers = variables.select_changing(variables.state_layout.buffers)
        state_variables = variables.select_changing(variables.state_variables())
        changed: list[Tensor] = [None] * len(state_buffers)
        seen_in = dict(zip(variables.growing_buffers(), sightings, strict=True))
        for number, store in enumerate(variables.stores):
            in_store = variables.layout.in_store(number)
            buffers = zip(in_store, store.weights, strict=True)
            dense = [w for i, w in buffers if not (is_replica or variables.is_sparse(i))]
            state = [index for index, b in enumerate(state_buffers) if b.store == number]
            # The gradients must have arrived before the lock is taken.
            sparse = [i for i in in_store if isinstance(gradients[i], tf.IndexedSlices)]
            rows = send_slices([gradients[index] for index in sparse], store.device)
            received = dict(zip(sparse, rows, strict=True))
            with tf.device(store.device):
                arrived = [
                    received[index] if index in received else tf.identity(gradients[index])
                    for index in in_store
                ]
                seen = {
                    position: Sightings(*map(tf.identity, seen_in[index]))
                    for position, index in enumerate(in_store)
                    if index in seen_in
                }
                changes = [
                    (state_variables[index], StateUpdate(*map(tf.identity, updates[index])))
                    for index in state
                ]
                update = partial(
                    self._apply_once, number, tf.identity(origin), arrived, changes, seen, dense
                )
                values = self.locks[number].run(update)[1:]
            updated.append(values[: len(dense)])
            for index, value in zip(state, values[len(dense) :], strict=True):
                changed[index] = value
        return ([], []) if is_replica else (variables.order_dense(updated), changed)

    @unconverted
    def _apply_once(
        self,
        number: int,
        origin: Tensor,
        gradients: list[Tensor],
        changes: list[tuple[TFVariable, StateUpdate]],
        seen: dict[int, Sightings],
        dense: list[KerasVariable],
    ) -> list[Tensor]:
        """Update one store, unless it was before; return its dense weights and changed state."""
        store, expected = self.variables.stores[number], self.expected[number]
        trainer, batch = tf.unstack(origin)

        @unconverted
        def update() -> Tensor:
            with tf.device(store.device):
                store.apply(store.drop_stale(gradients, seen))
                for position, ids in seen.items():
                    store.grow(position, ids)
                new = [update.apply(variable.read_value()) for variable, update in changes]
                for (variable, _), value in zip(changes, new, strict=True):
                    variable.assign(value)
                expected.scatter_nd_update([[trainer]], [batch + 1])
                if number == 0:
                    self.counter.assign_add(1)
                return tf.constant(0)

        @unconverted
        def skip() -> Tensor:
            with tf.device(store.device):
                if number == 0:
                    self.skipped.assign_add(1)
                return tf.constant(0)

        done = tf.cond(batch >= expected[trainer], update, skip)
        with tf.control_dependencies([done]):
            weights = [weight.value.read_value() for weight in dense]
            state = [variable.read_value() for variable, _ in changes]
        return [tf.identity(done), *weights, *state]
