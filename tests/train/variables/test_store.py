"""The layout of weights, and the optimizers of stores."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.variables import store
from phalanx.train.variables.store import clone_optimizer, plan_weights


def make_weights() -> list[Any]:
    return [keras.Variable(np.zeros(shape, "float32")) for shape in ((8, 4), (4,), (6, 2))]


def test_elementwise_optimizers_share_buffers_and_others_do_not() -> None:
    assert len(plan_weights(make_weights(), keras.optimizers.Adam(), 1).buffers) == 1
    assert len(plan_weights(make_weights(), keras.optimizers.Lamb(), 1).buffers) == 3


def test_large_weights_get_buffers_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LARGE_BYTES", 8 * 4 * 4)
    layout = plan_weights(make_weights(), keras.optimizers.Adam(), 2)
    large = [buffer.shape for buffer in layout.buffers if layout.groups[buffer.group] == (0,)]
    assert large == [(4, 4), (4, 4)]


def test_sparse_gradients_of_large_weights_are_split_by_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "LARGE_BYTES", 8 * 4 * 4)
    layout = plan_weights(make_weights(), keras.optimizers.Adam(), 3, looked_up={0})
    values = np.arange(20, dtype="float32").reshape(5, 4)
    gradient = tf.IndexedSlices(values, tf.constant([7, 0, 7, 2, 4], tf.int64), tf.constant([8, 4]))
    parts = layout.flatten([gradient, tf.zeros(4), tf.zeros((6, 2))])
    found = [
        (buffer.shape, part.indices.numpy().tolist(), part.values.numpy().tolist())
        for buffer, part in zip(layout.buffers, parts, strict=True)
        if buffer.looked_up
    ]
    assert found == [
        ((2, 4), [0], values[[1]].tolist()),
        ((3, 4), [0, 2], values[[3, 4]].tolist()),
        ((3, 4), [2, 2], values[[0, 2]].tolist()),
    ]


def test_weights_with_a_constraint_are_not_split() -> None:
    weights = make_weights()
    weights[0].constraint = keras.constraints.NonNeg()
    layout = plan_weights(weights, keras.optimizers.Adam(), 2)
    assert [buffer.shape for buffer in layout.buffers] == [(8,), (8,), (8, 4)]


def test_clone_does_not_clip() -> None:
    clone = clone_optimizer(keras.optimizers.SGD(0.5, clipnorm=1.0))
    assert (float(clone.learning_rate), clone.clipnorm) == (0.5, None)


def test_optimizer_without_config_is_explained() -> None:
    class Unregistered(keras.optimizers.SGD):  # type: ignore[misc]
        def __init__(self, rate: float) -> None:
            super().__init__(rate)

    with pytest.raises(ConfigurationError, match="Unregistered cannot be created again"):
        clone_optimizer(Unregistered(0.1))
