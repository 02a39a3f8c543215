"""What is packed arrives as it was, in few messages."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from phalanx.train.variables.packing import send_slices
from phalanx.train.variables.sparse_tables import Lookups
from phalanx.train.variables.table import Table

CPU = "/device:CPU:0"
SIZES = [(50, 4), (7, 3), (20, 4)]
random = np.random.default_rng(0)


def count_messages(function: Any, *arguments: Any) -> tuple[int, int]:
    """Return how many tensors get to a device, and how many leave it again."""
    graph = tf.function(function, autograph=False).get_concrete_function(*arguments).graph
    to = {t.name for op in graph.get_operations() if op.device for t in op.inputs
          if not t.op.device and t.dtype != tf.resource}  # fmt: skip
    back = {t.name for op in graph.get_operations() if not op.device for t in op.inputs
            if t.op.device}  # fmt: skip
    return len(to), len(back)


def make_gradient(rows: int, width: int, dtype: Any = "float32") -> Any:
    count = int(random.integers(0, rows))
    return tf.IndexedSlices(
        tf.constant(random.normal(size=(count, width)), dtype),
        tf.constant(random.integers(0, rows, count)),
        tf.constant([rows, width], tf.int64),
    )


def test_gradients_of_many_tables_travel_together() -> None:
    gradients = [make_gradient(*size) for size in SIZES] + [make_gradient(9, 2, "float64")]

    def send() -> Any:
        return send_slices([tf.nest.map_structure(tf.identity, g, expand_composites=True)
                            for g in gradients], CPU)  # fmt: skip

    for found, wanted in zip(tf.function(send)(), gradients, strict=True):
        np.testing.assert_array_equal(found.indices, wanted.indices)
        np.testing.assert_array_equal(found.values, wanted.values)
        np.testing.assert_array_equal(found.dense_shape, wanted.dense_shape)
    # The indices, and the values of each type.
    assert count_messages(send)[0] == 3


@pytest.mark.parametrize("shards", [1, 3])
def test_rows_of_many_tables_are_those_of_each_and_travel_together(shards: int) -> None:
    tables = [Table(size, keras.initializers.Zeros(), "float32", "rows") for size in SIZES]
    parts: dict[int, list[tuple[int, Any]]] = {}
    for number, (rows, width) in enumerate(SIZES):
        sizes = [rows * (i + 1) // shards - rows * i // shards for i in range(shards)]
        made = [tf.Variable(random.normal(size=(size, width)), dtype=tf.float32) for size in sizes]
        parts[id(tables[number])] = [(number * shards + i, v) for i, v in enumerate(made)]
    wanted = [tf.constant(random.integers(0, rows, (4, 5))) for rows, _ in SIZES]

    def look_up(is_together: bool) -> Any:
        with tf.GradientTape() as tape:
            lookups = Lookups(parts, is_remote=True, tape=tape)
            if is_together:
                rows = lookups.look_up_all(list(zip(tables, wanted, strict=True)))
            else:
                rows = [lookups.look_up(t, i) for t, i in zip(tables, wanted, strict=True)]
            loss = tf.add_n([tf.reduce_sum(r**2) for r in rows])
        buffers = {index: v for of_table in parts.values() for index, v in of_table}
        gradients = lookups.gradients(tape.gradient(loss, lookups.rows), buffers)
        return rows, {i: tf.convert_to_tensor(g) for i, g in gradients.items()}

    found, alone = (
        tf.function(look_up, autograph=False)(is_together) for is_together in (True, False)
    )
    tf.nest.map_structure(np.testing.assert_array_equal, found, alone)

    def fetch() -> Any:
        lookups = Lookups(parts, is_remote=True)
        return lookups.look_up_all(list(zip(tables, map(tf.identity, wanted), strict=True)))

    # All shards are on one device.
    assert count_messages(fetch) == (1, 1)
