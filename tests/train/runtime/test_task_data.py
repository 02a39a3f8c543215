"""The data of one task."""

from __future__ import annotations

import pytest
import tensorflow as tf

import phalanx
from phalanx.train.runtime.task_data import make_train_data, repeat_and_skip


@pytest.mark.parametrize("asked", [None, True])
def test_autotune_is_disabled_unless_the_user_enables_it(asked: bool | None) -> None:
    # Closing a dataset that is tuned takes up to a minute.
    data = tf.data.Dataset.range(8).batch(2)
    if asked is not None:
        options = tf.data.Options()
        options.autotune.enabled = asked
        data = data.with_options(options)
    made = make_train_data(phalanx.Experiment(train_data=lambda: data), phalanx.Context())
    assert made.options().autotune.enabled is bool(asked)
    assert [list(batch) for batch in made.as_numpy_iterator()] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_skipping_does_not_read_whole_epochs() -> None:
    data = tf.data.Dataset.range(4)
    of_unknown_length = data.filter(lambda _: True)
    for numbers in (data, of_unknown_length):
        endless = repeat_and_skip(numbers, None, 9)
        assert [int(number) for number in endless.take(4)] == [1, 2, 3, 0]
    assert [int(number) for number in repeat_and_skip(data, 3, 9)] == [1, 2, 3]
    read: list[int] = []

    def note(number: tf.Tensor) -> tf.Tensor:
        read.append(int(number))
        return number

    noted = data.map(lambda number: tf.py_function(note, [number], tf.int64))
    next(iter(repeat_and_skip(noted, None, 4001)))
    assert len(read) < 100


def test_autograph_does_not_convert_the_users_function(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def read() -> tf.data.Dataset:
        # What AutoGraph does not understand, and says at length.
        return tf.data.Dataset.range(count := 3).take(count)

    experiment = phalanx.Experiment(train_data=read)
    tf.get_logger().addHandler(caplog.handler)
    try:
        made = tf.function(lambda: make_train_data(experiment, phalanx.Context()).reduce(
            tf.constant(0, tf.int64), tf.add))()  # fmt: skip
    finally:
        tf.get_logger().removeHandler(caplog.handler)
    assert int(made) == 3
    assert "AutoGraph" not in caplog.text
