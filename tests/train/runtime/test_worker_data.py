"""Which datasets can be sent to a worker, and worker data, served and read in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from phalanx.data import Pipeline
from phalanx.train.runtime.task_data import skip_passes
from phalanx.train.runtime.worker_data import can_be_sent, read_worker_data, serve_worker_data


def count_up() -> Any:
    for number in range(5):
        yield np.full([3], number, "float32")


def make_counted() -> Any:
    return tf.data.Dataset.from_generator(count_up, output_signature=tf.TensorSpec([3]))


def test_a_function_reads_the_served_data_again_and_again() -> None:
    data = make_counted().map(
        lambda x: {"x": x, "half": tf.numpy_function(np.negative, [x], "float32")}
    )
    serve_worker_data(data, lambda passes: data)

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


def test_every_pass_has_the_order_that_it_has_in_one_process() -> None:
    def make(passes: int = 0) -> Any:
        return skip_passes(make_counted().shuffle(5, seed=1), passes)

    def read(data: Any) -> list[int]:
        return [int(element[0]) for element in data]

    in_one_process = make()
    expected = [read(in_one_process) for _ in range(6)]
    assert len(set(map(tuple, expected))) > 1
    serve_worker_data(make(), make)
    spec = in_one_process.element_spec
    # Opened for each pass, repeated in one opening, and opened by a chief that was restarted.
    assert [read(read_worker_data(spec, passes=number)) for number in range(2)] == expected[:2]
    repeated = read(read_worker_data(spec, passes=2).repeat(2))
    assert repeated == expected[2] + expected[3]
    assert read(read_worker_data(spec, passes=1)) == expected[1]
    assert read(read_worker_data(spec, passes=5)) == expected[5]


@pytest.mark.parametrize(
    ("make", "sendable"),
    [
        (lambda: tf.data.Dataset.range(5).shuffle(5).map(lambda x: x + 1).batch(2), True),
        (make_counted, False),
        (
            lambda: tf.data.Dataset.range(5).map(lambda x: tf.numpy_function(abs, [x], "int64")),
            False,
        ),
        (lambda: tf.data.Dataset.from_tensor_slices(np.zeros([1000, 10])), True),
        (lambda: tf.data.Dataset.from_tensor_slices(np.zeros([10_000, 1000])), False),
    ],
    ids=["operations", "generator", "function", "small array", "large array"],
)
def test_datasets_that_call_python_or_are_large_cannot_be_sent(make: Any, sendable: bool) -> None:
    assert can_be_sent(make()) == sendable


def test_a_pipeline_is_sent_as_operations() -> None:
    def make() -> Any:
        return Pipeline.from_arrays({"x": np.arange(10)}, seed=1).dataset(5, epochs=1)

    assert not can_be_sent(make())
    assert can_be_sent(make(), make)
    assert not can_be_sent(make_counted(), make_counted)
