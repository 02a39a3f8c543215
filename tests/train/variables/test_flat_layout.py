from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from phalanx.train.variables.flat_layout import FlatLayout, VariableSpec

SHAPES = [(3, 4), (5,), (), (2, 2, 2)]


def make(stores: int, flat: bool = True) -> FlatLayout:
    return FlatLayout.plan([VariableSpec(shape, "float32", flat=flat) for shape in SHAPES], stores)


@pytest.mark.parametrize("stores", [1, 2, 3, 40])
@pytest.mark.parametrize("flat", [True, False])
def test_flattened_values_are_restored(stores: int, flat: bool) -> None:
    values = [np.random.default_rng(0).normal(size=shape).astype("float32") for shape in SHAPES]
    layout = make(stores, flat)
    contents = layout.flatten_arrays(values)
    for found, value in zip(
        layout.unflatten([tf.constant(p) for p in contents]), values, strict=True
    ):
        np.testing.assert_array_equal(found, value)
    for found, content in zip(
        layout.flatten([tf.constant(v) for v in values]), contents, strict=True
    ):
        np.testing.assert_array_equal(found, content)


@pytest.mark.parametrize(("stores", "flat"), [(1, True), (2, True), (1, False), (3, False)])
def test_buffers_are_no_larger_than_their_limit(stores: int, flat: bool) -> None:
    kind: dict[str, Any] = {"flat": flat, "split": not flat, "limit": 100}
    specs = [VariableSpec((17, 5), "float32", **kind), VariableSpec((9, 2), "float64", **kind)]
    layout = FlatLayout.plan(specs, stores)
    assert max(buffer.nbytes for buffer in layout.buffers) <= 100
    values = [np.random.default_rng(0).normal(size=spec.shape) for spec in specs]
    contents = layout.flatten_arrays(values)
    parts = [tf.constant(content) for content in contents]
    for found, value in zip(layout.unflatten(parts), values, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-6)
    tensors = [tf.constant(v, s.dtype) for v, s in zip(values, specs, strict=True)]
    for found, content in zip(layout.flatten(tensors), contents, strict=True):
        np.testing.assert_array_equal(found, content)
    # The gradient of lookups is split in the same way.
    gradient = tf.IndexedSlices(
        tensors[0], tf.range(17, dtype=tf.int64), tf.constant([17, 5], tf.int64)
    )
    if not flat:
        split = layout.flatten([gradient, tensors[1]])
        for found, content in zip(split, contents, strict=True):
            np.testing.assert_array_equal(tf.convert_to_tensor(found), content)


def test_variables_are_split_evenly_over_stores() -> None:
    layout = make(2)
    sizes = [sum(layout.buffers[i].shape[0] for i in layout.in_store(store)) for store in range(2)]
    assert sizes == [13, 13]


def test_variables_that_are_not_split_go_to_the_emptiest_store() -> None:
    specs = [VariableSpec((size,), "float32", flat=False) for size in (10, 60, 30, 25)]
    layout = FlatLayout.plan(specs, 2)
    sizes = [sum(layout.buffers[i].shape[0] for i in layout.in_store(store)) for store in range(2)]
    assert sorted(sizes) == [60, 65]


def test_weight_decay_and_types_do_not_share_buffers() -> None:
    specs = [
        VariableSpec((2,), "float32", weight_decay=True),
        VariableSpec((2,), "float32"),
        VariableSpec((2,), "int64"),
    ]
    assert FlatLayout.plan(specs).groups == ((0,), (1,), (2,))


def test_gradients_flow_through_unflatten() -> None:
    layout = make(2)
    buffers = [tf.ones(buffer.shape) for buffer in layout.buffers]
    with tf.GradientTape() as tape:
        tape.watch(buffers)
        total = tf.add_n([tf.reduce_sum(value) * 2.0 for value in layout.unflatten(buffers)])
    for gradient in tape.gradient(total, buffers):
        np.testing.assert_array_equal(gradient, np.full(gradient.shape, 2.0))
