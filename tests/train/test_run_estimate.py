"""The estimate of a run has the sizes of the variables that the run creates."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.train.sparse_model import make_data, make_model

import phalanx
from phalanx.cluster import Cluster, Role
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


def test_replicas_double_what_a_parameter_server_holds_and_receives() -> None:
    cluster = Cluster.of(chief="a:1", workers=["b:1"], ps=["c:1", "d:1"])
    one, two = (
        estimate_run(EXPERIMENT, CONFIG.replace(ps_replicas=replicas), cluster)
        for replicas in (1, 2)
    )
    for role, held, received in ((Role.WORKER, 1, 1), (Role.PS, 2, 2)):
        before, after = (
            [task for task in estimate.tasks if task.task.role is role] for estimate in (one, two)
        )
        assert sum(t.weight_bytes for t in after) == held * sum(t.weight_bytes for t in before)
        assert sum(t.received_bytes for t in after) == pytest.approx(
            received * sum(t.received_bytes for t in before), rel=0.01
        )


def test_indexes_of_growing_tables_are_estimated() -> None:
    def make_growing() -> Any:
        ids = keras.Input((), dtype="int64")
        layer = phalanx.layers.DynamicEmbedding(4, max_rows=16_000, min_count=2)
        model = keras.Model(ids, keras.layers.Dense(1)(layer(ids)))
        model.compile("adagrad", "mse")
        return model

    def make_ids(context: phalanx.Context) -> Any:
        data = tf.data.Dataset.range(100).map(lambda n: (n // 2, tf.zeros([1])))
        return data.batch(context.batch_size)

    experiment = phalanx.Experiment(model=make_growing, train_data=make_ids)
    cluster = Cluster.of(chief="a:1", workers=["b:1"], ps=["c:1", "d:1"])
    estimate = estimate_run(experiment, CONFIG, cluster)
    step = StepFunction(experiment, phalanx.Context(batch_size=20))
    step.build(make_ids(phalanx.Context(batch_size=20)).element_spec)
    placed = DeviceVariables.place(step.make_host_variables(), ["/device:CPU:0"] * 2, Clipping())
    for store, found in zip(placed.stores, estimate.tasks[2:], strict=True):
        (index,) = store.indexes.values()
        entries = [index.ids, index.counts, index.seen, index.admitted_at, index.initial]
        assert found.weight_bytes == pytest.approx(size([*store.weights, *entries]), rel=0.01)
    (rows,) = estimate.looked_up.values()
    assert rows == 10
    # Rows and slots, two entries with three numbers for each row.
    assert estimate.checkpoint_bytes == pytest.approx(16_000 * (2 * 4 * 4 + 2 * 3 * 8), rel=0.01)


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
