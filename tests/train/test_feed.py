"""A task's data."""

from __future__ import annotations

import pytest
import tensorflow as tf

import phalanx
from phalanx.train.feed import make_train_data


@pytest.mark.parametrize("asked", [None, True])
def test_a_dataset_is_tuned_only_if_so_asked(asked: bool | None) -> None:
    # Closing a dataset that is tuned takes up to a minute.
    data = tf.data.Dataset.range(8).batch(2)
    if asked is not None:
        options = tf.data.Options()
        options.autotune.enabled = asked
        data = data.with_options(options)
    made = make_train_data(phalanx.Experiment(train_data=lambda: data), phalanx.Context())
    assert made.options().autotune.enabled is bool(asked)
    assert [list(batch) for batch in made.as_numpy_iterator()] == [[0, 1], [2, 3], [4, 5], [6, 7]]
