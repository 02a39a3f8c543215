"""Replicas: copies of the buffers of parameter servers, each on another parameter server.

Every update is made in all copies, and all reads are from the first one. So when a parameter server
is lost, another one has its buffers, its slots, and the numbers of its updates.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.python.eager import context, executor

from phalanx.train.runtime.background_calls import call_in_background
from phalanx.train.variables.device_variables import DeviceVariables
from phalanx.train.variables.store import VariableStore

LOG = logging.getLogger("phalanx")

_ANSWER_SECONDS = 15.0


@dataclass(frozen=True)
class Replicas:
    """The copies of the buffers that are trained.

    Attributes:
        copies: All copies but the first. In the n-th one, the buffers of a parameter server are on
            the n-th one after it.
    """

    copies: tuple[DeviceVariables, ...] = ()

    @classmethod
    def place(cls, variables: DeviceVariables, count: int) -> Replicas:
        """Create copies of variables, so that there are `count` of each buffer."""
        devices = [store.device for store in variables.stores]
        return cls(
            tuple(
                DeviceVariables.place(
                    variables.host_variables,
                    [*devices[shift:], *devices[:shift]],
                    variables.clipping,
                    is_copy=True,
                )
                for shift in range(1, count)
            )
        )

    def replace(self, variables: DeviceVariables, lost: Collection[str]) -> DeviceVariables | None:
        """Return variables without stores on lost devices; None if all copies of one are lost."""
        stores = []
        for candidates in zip(variables.stores, *(c.stores for c in self.copies), strict=True):
            found = next((store for store in candidates if store.device not in lost), None)
            if found is None:
                return None
            stores.append(found)
        return variables.replace_stores(stores)


def find_lost(variables: DeviceVariables) -> set[str]:
    """Return the devices that have lost their variables, also if a new process has their place."""

    def ask(store: VariableStore) -> None:
        # An error of one call fails all later ones of its executor.
        with context.executor_scope(executor.new_executor(enable_async=False)):
            store.optimizer.iterations.numpy()

    calls = {store.device: call_in_background(ask, store) for store in variables.stores}
    lost = set()
    for device, call in calls.items():
        try:
            call.result(_ANSWER_SECONDS)
        except (tf.errors.OpError, TimeoutError) as error:
            LOG.info("the variables on %s are lost: %s", device, type(error).__name__)
            lost.add(device)
    return lost


def forget_errors() -> None:
    """Let calls succeed again that need no lost server, after one that has failed."""
    context.context().executor.clear_error()


def read_iterations(variables: DeviceVariables) -> int | None:
    """Return how many updates were made; None if some stores have made one that others have not."""
    found = {int(store.optimizer.iterations.numpy()) for store in variables.stores}
    return found.pop() if len(found) == 1 else None
