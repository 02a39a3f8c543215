"""Worker data: served and read in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from phalanx.train.runtime.worker_data import read_worker_data, serve_worker_data


def count_up() -> Any:
    for number in range(5):
        yield np.full([3], number, "float32")


def make_counted() -> Any:
    return tf.data.Dataset.from_generator(count_up, output_signature=tf.TensorSpec([3]))


def test_a_function_reads_the_served_data_again_and_again() -> None:
    data = make_counted().map(
        lambda x: {"x": x, "half": tf.numpy_function(np.negative, [x], "float32")}
    )
    serve_worker_data(data)

    @tf.function  # type: ignore[untyped-decorator]
    def add_up() -> Any:
        total, batches = tf.constant(0.0), tf.constant(0)
        for element in read_worker_data(data.element_spec).skip(1):
            total += tf.reduce_sum(element["x"])
            batches += 1
        return total, batches

    for _ in range(2):
        total, batches = add_up()
        assert (float(total), int(batches)) == (30.0, 4)
