"""Sums over all replicas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from phalanx.train.engines.reduction import RowPacking
from phalanx.train.variables.flat_layout import Buffer


def make_rows(values: list[list[float]], indices: list[int], buffer: Buffer) -> Any:
    return tf.IndexedSlices(
        tf.cast(tf.constant(values, shape=[len(indices), 3]), buffer.dtype),
        tf.constant(indices, tf.int64),
        tf.constant(buffer.shape, tf.int64),
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_rows_of_many_tables_are_summed_in_one_matrix(dtype: str) -> None:
    # The second table has so many rows that the bits of an index need both halves.
    tables = [Buffer((5, 3), dtype, group=0, store=0), Buffer((2**40, 3), dtype, group=1, store=0)]
    packing = RowPacking(tables)
    first = [make_rows([[1, 2, 3], [4, 5, 6]], [4, 4], tables[0]), make_rows([], [], tables[1])]
    second = [
        make_rows([[1, 1, 1], [0, 0, 0]], [4, 0], tables[0]),
        make_rows([[7, 8, 9]], [2**40 - 1], tables[1]),
    ]

    @tf.function  # type: ignore[untyped-decorator]
    def exchange(one: Any, two: Any) -> Any:
        return packing.unpack(tf.concat([packing.pack(one), packing.pack(two)], 0))

    few, many = exchange(first, second)
    assert few.values.dtype == dtype
    # A row that was looked up counts, also if its gradient is zero.
    assert dict(zip(few.indices.numpy().tolist(), few.values.numpy().tolist(), strict=True)) == {
        4: [6, 8, 10],
        0: [0, 0, 0],
    }
    assert many.indices.numpy().tolist() == [2**40 - 1]
    np.testing.assert_array_equal(np.asarray(many.values, "float32"), [[7, 8, 9]])


def test_steps_without_rows_have_empty_gradients() -> None:
    tables = [Buffer((5, 3), "float32", group=0, store=0)]
    packing = RowPacking(tables)
    packed = packing.pack([make_rows([], [], tables[0])])
    # TensorFlow crashes if it gathers a matrix without rows.
    assert packed.shape[0] == 1
    (gradient,) = packing.unpack(tf.concat([packed, packed], 0))
    assert gradient.indices.shape == [0]
    assert gradient.values.shape == [0, 3]
