from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from phalanx.train.variables.flat_layout import FlatLayout, VariableSpec

SHAPES = [(3, 4), (5,), (), (2, 2, 2)]


def make(stores: int, flat: bool = True) -> FlatLayout:
    return FlatLayout.plan([VariableSpec(shape, "float32", flat=flat) for shape in SHAPES], stores)


@pytest.mark.parametrize("stores", [1, 2, 3, 40])
@pytest.mark.parametrize("flat", [True, False])
def test_what_is_packed_comes_back(stores: int, flat: bool) -> None:
    values = [np.random.default_rng(0).normal(size=shape).astype("float32") for shape in SHAPES]
    plan = make(stores, flat)
    packed = plan.flatten_arrays(values)
    for found, value in zip(plan.unflatten([tf.constant(p) for p in packed]), values, strict=True):
        np.testing.assert_array_equal(found, value)
    for found, piece in zip(plan.flatten([tf.constant(v) for v in values]), packed, strict=True):
        np.testing.assert_array_equal(found, piece)


def test_stores_get_even_shares() -> None:
    plan = make(2)
    sizes = [sum(plan.buffers[i].shape[0] for i in plan.in_store(store)) for store in range(2)]
    assert sizes == [13, 13]


def test_what_cannot_be_cut_goes_to_the_emptiest_store() -> None:
    items = [VariableSpec((size,), "float32", flat=False) for size in (10, 60, 30, 25)]
    plan = FlatLayout.plan(items, 2)
    sizes = [sum(plan.buffers[i].shape[0] for i in plan.in_store(store)) for store in range(2)]
    assert sorted(sizes) == [60, 65]


def test_kinds_and_types_are_kept_apart() -> None:
    items = [
        VariableSpec((2,), "float32", weight_decay=True),
        VariableSpec((2,), "float32"),
        VariableSpec((2,), "int64"),
    ]
    assert FlatLayout.plan(items).groups == ((0,), (1,), (2,))


def test_gradients_flow_through() -> None:
    plan = make(2)
    pieces = [tf.ones(piece.shape) for piece in plan.buffers]
    with tf.GradientTape() as tape:
        tape.watch(pieces)
        total = tf.add_n([tf.reduce_sum(value) * 2.0 for value in plan.unflatten(pieces)])
    for gradient in tape.gradient(total, pieces):
        np.testing.assert_array_equal(gradient, np.full(gradient.shape, 2.0))
