"""A save reads rows as they were when it began, while updates change them."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from phalanx.train.variables.row_snapshot import RowSnapshot

ROWS = 200


def make() -> tuple[list[Any], RowSnapshot, Any]:
    """Return the rows and a slot of a shard, their snapshot, and an update of some rows."""
    rows = tf.Variable(tf.random.normal([ROWS, 3]))
    slot = tf.Variable(tf.random.normal([ROWS, 3]))
    snapshot = RowSnapshot([rows, slot])

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])  # type: ignore[untyped-decorator]
    def update(indices: Any) -> None:
        snapshot.keep(indices)
        for variable in (rows, slot):
            variable.scatter_add(tf.IndexedSlices(tf.ones([tf.size(indices), 3]), indices))

    return [rows, slot], snapshot, update


def test_rows_are_those_of_the_beginning_of_the_save() -> None:
    variables, snapshot, update = make()
    wanted = [variable.numpy() for variable in variables]
    snapshot.open()
    for indices in ([3, 7], [7, 150], [3]):
        update(tf.constant(indices, tf.int64))
    for variable, value in zip(variables, wanted, strict=True):
        for begin in range(0, ROWS, 50):
            numbers = tf.range(begin, begin + 50, dtype=tf.int64)
            np.testing.assert_array_equal(
                snapshot.read(variable, numbers), value[begin : begin + 50]
            )
            update(tf.constant([begin, begin + 49, 199], tf.int64))
    chosen = tf.constant([0, 7, 98, 150], tf.int64)
    np.testing.assert_array_equal(snapshot.read(variables[1], chosen), wanted[1][chosen])


def test_next_save_has_later_rows() -> None:
    variables, snapshot, update = make()
    for _ in range(3):
        wanted = variables[0].numpy()
        snapshot.open()
        update(tf.constant([1, 2], tf.int64))
        numbers = tf.range(ROWS, dtype=tf.int64)
        np.testing.assert_array_equal(snapshot.read(variables[0], numbers), wanted)
        update(tf.constant([2, 3], tf.int64))
        snapshot.close()
        update(tf.constant([3, 4], tf.int64))


@pytest.mark.parametrize("is_open", [True, False])
def test_all_rows_are_kept_before_they_are_written_as_a_whole(is_open: bool) -> None:
    variables, snapshot, _ = make()
    wanted = variables[0].numpy()
    if is_open:
        snapshot.open()
    snapshot.keep_all(64)
    variables[0].assign(tf.zeros([ROWS, 3]))
    numbers = tf.range(ROWS, dtype=tf.int64)
    found = snapshot.read(variables[0], numbers).numpy()
    np.testing.assert_array_equal(found, wanted if is_open else np.zeros([ROWS, 3]))


def test_updates_of_another_thread_are_not_seen() -> None:
    variables, snapshot, update = make()
    random, ended = np.random.default_rng(0), threading.Event()

    def train() -> None:
        while not ended.is_set():
            update(tf.constant(random.choice(ROWS, 20, replace=False)))

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(5):
            # No update may run while a snapshot is opened.
            ended.set()
            thread.join()
            wanted = [variable.numpy() for variable in variables]
            snapshot.open()
            ended.clear()
            thread = threading.Thread(target=train)
            thread.start()
            for begin in range(0, ROWS, 10):
                numbers = tf.range(begin, begin + 10, dtype=tf.int64)
                for variable, value in zip(variables, wanted, strict=True):
                    np.testing.assert_array_equal(
                        snapshot.read(variable, numbers), value[begin : begin + 10]
                    )
            snapshot.close()
    finally:
        ended.set()
        thread.join()
