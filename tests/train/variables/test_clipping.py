"""Gradient clipping."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.train.sparse_model import train_once

from phalanx.train.variables.clipping import Clipping

SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "clipping",
    [
        pytest.param(Clipping(value=0.01), marks=SLOW),
        Clipping(norm=0.02),
        pytest.param(Clipping(global_norm=0.03), marks=SLOW),
    ],
)
def test_clipping_does_not_depend_on_the_number_of_stores(clipping: Clipping) -> None:
    wanted = train_once(clipping, optimizer=keras.optimizers.SGD(1.0))
    found = train_once(clipping, stores=3, optimizer=keras.optimizers.SGD(1.0))
    free = train_once(Clipping(), optimizer=keras.optimizers.SGD(1.0))
    for one, other, unclipped in zip(found, wanted, free, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
        assert np.abs(one - unclipped).max() > 1e-4


def test_scaled_gradients_are_clipped_at_scaled_limits() -> None:
    scaled = Clipping(value=0.5, norm=2.0).scale(tf.constant(8.0))
    assert scaled.value is not None and float(scaled.value) == 4.0
    assert scaled.norm is not None and float(scaled.norm) == 16.0
    assert scaled.global_norm is None
