"""The estimate of a run has the sizes of the variables that the run creates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.train.sparse_model import make_data, make_model

import phalanx
from phalanx.cluster import Cluster
from phalanx.train.run_estimate import estimate_run
from phalanx.train.step.step_function import StepFunction
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables

EXPERIMENT = phalanx.Experiment(model=lambda: make_model("adam"), train_data=make_data)
CONFIG = phalanx.RunConfig(global_batch_size=40)


def size(variables: Any) -> int:
    return sum(math.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables)


def test_parameter_servers_hold_what_is_estimated() -> None:
    cluster = Cluster.of(chief="a:1", workers=["b:1"], ps=["c:1", "d:1", "e:1"])
    estimate = estimate_run(EXPERIMENT, CONFIG, cluster)
    step = StepFunction(EXPERIMENT, phalanx.Context(batch_size=20))
    step.build(make_data(phalanx.Context(batch_size=20)).element_spec)
    placed = DeviceVariables.place(step.make_host_variables(), ["/device:CPU:0"] * 3, Clipping())
    for store, found in zip(placed.stores, estimate.tasks[2:], strict=True):
        assert found.weight_bytes == size(store.weights)
        slots = [s for by_weight in store.slots.by_name.values() for s in by_weight.values()]
        # The slots of a buffer that holds a part of several weights are rounded.
        assert found.slot_bytes == pytest.approx(size(slots), abs=8)


def test_rows_are_counted_once_in_the_first_batch() -> None:
    estimate = estimate_run(EXPERIMENT, CONFIG, Cluster())
    (user, item), _ = next(iter(make_data(phalanx.Context(batch_size=40))))
    unique = {name: len(np.unique(v)) for name, v in (("user", user), ("item", item))}
    # The layer of users is called with both.
    assert estimate.looked_up == {
        "users/embeddings": unique["user"] + unique["item"],
        "items/embeddings": unique["item"],
    }
    (only,) = estimate.tasks
    assert only.sent_bytes == only.received_bytes == 0
    assert estimate.checkpoint_bytes == only.saved_bytes > 3 * 2 * 50 * 4 * 4


def test_workers_without_parameter_servers_exchange_rows_and_not_tables() -> None:
    estimate = estimate_run(EXPERIMENT, CONFIG, Cluster.of(workers=["a:1", "b:1"]))
    first, second = estimate.tasks
    assert first.sent_bytes == second.sent_bytes > 0
    assert second.saved_bytes == 0 < first.saved_bytes
