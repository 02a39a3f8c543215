"""The data of one task."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import phalanx
from phalanx.train.runtime.task_data import make_train_data, repeat_and_skip, skip_passes


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


def shuffled() -> Any:
    return tf.data.Dataset.range(20).shuffle(20, seed=3).batch(4)


def read(data: Any) -> list[int]:
    return [int(value) for batch in data for value in batch]


@pytest.mark.parametrize("passes", [0, 1, 3])
def test_a_later_pass_has_the_order_that_it_has_without_a_restart(passes: int) -> None:
    whole = shuffled()
    orders = [read(whole) for _ in range(5)]
    assert orders[0] != orders[1]
    resumed = skip_passes(shuffled(), passes)
    assert [read(resumed) for _ in range(2)] == orders[passes : passes + 2]


def test_a_later_pass_in_a_function() -> None:
    whole = shuffled()
    orders = [read(whole) for _ in range(3)]

    @tf.function  # type: ignore[untyped-decorator]
    def make() -> Any:
        return tf.data.experimental.to_variant(skip_passes(shuffled(), 2))

    resumed = tf.data.experimental.from_variant(make(), whole.element_spec)
    assert read(resumed) == orders[2]


def test_repeated_data_is_skipped_in_its_own_order() -> None:
    whole = read(shuffled().repeat(3))
    assert read(repeat_and_skip(shuffled(), None, 7).take(8)) == whole[28:]


def test_passes_of_ragged_batches_are_skipped() -> None:
    rows = tf.ragged.constant([[1], [2, 3], [], [4]])
    data = tf.data.Dataset.from_tensor_slices(rows).shuffle(4, seed=1).ragged_batch(2)
    second = [[batch.to_list() for batch in data] for _ in range(2)][1]
    data = tf.data.Dataset.from_tensor_slices(rows).shuffle(4, seed=1).ragged_batch(2)
    assert [batch.to_list() for batch in skip_passes(data, 1)] == second
