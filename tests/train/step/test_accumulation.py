"""Gradient accumulation: contributions weighted by examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tests.train.sparse_model import make_step, train_once

from phalanx.train.step.accumulation import (
    add_contributions,
    average,
    weight_by_examples,
    zero_contribution,
)
from phalanx.train.step.step_function import StepResult
from phalanx.train.variables.clipping import Clipping
from phalanx.train.variables.device_variables import DeviceVariables

SLOW = pytest.mark.slow


@pytest.mark.parametrize("parts", [pytest.param(2, marks=SLOW), 5])
def test_parts_of_a_batch_train_what_the_whole_batch_does(parts: int) -> None:
    for one, other in zip(train_once(Clipping(), 2, parts), train_once(Clipping(), 2), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def variables() -> DeviceVariables:
    """Two sparse tables, and one dense buffer."""
    _, host_variables = make_step("sgd")
    return DeviceVariables.place(host_variables, ["/device:CPU:0"], Clipping())


def make_result(variables: DeviceVariables, value: float, examples: float, count: int) -> Any:
    gradients = [
        tf.IndexedSlices(tf.fill([1, *buffer.shape[1:]], value), [count], [*buffer.shape])
        if index in variables.sparse_buffers()
        else tf.fill(buffer.shape, value)
        for index, buffer in enumerate(variables.layout.buffers)
    ]
    state = [tf.constant(value), tf.constant(count)]
    return StepResult(gradients, state, tf.constant([examples]), [])


def test_average_weights_each_batch_by_its_examples(variables: DeviceVariables) -> None:
    batches = [make_result(variables, 1.0, 3.0, 7), make_result(variables, 5.0, 1.0, 8)]
    first, second = (weight_by_examples(batch, variables) for batch in batches)
    mean = average(add_contributions(first, second))
    for index, gradient in enumerate(mean.gradients):
        if index in variables.sparse_buffers():
            np.testing.assert_array_equal(gradient.indices, [7, 8])
            np.testing.assert_allclose(gradient.values[:, 0], [0.75, 1.25])
        else:
            np.testing.assert_allclose(gradient, np.full(gradient.shape, 2.0))
    assert float(mean.state[0]) == 2.0
    assert float(mean.report[0]) == 4.0


@pytest.mark.parametrize("comes_first", [True, False])
def test_batch_without_examples_changes_nothing(
    variables: DeviceVariables, comes_first: bool
) -> None:
    batch = weight_by_examples(make_result(variables, 2.0, 3.0, 7), variables)
    old_state = [tf.constant(9.0), tf.constant(6)]
    zero = zero_contribution(variables, old_state, report_size=1)
    total = add_contributions(zero, batch) if comes_first else add_contributions(batch, zero)
    mean = average(total)
    assert [float(value) for value in mean.state] == [2.0, 7.0]
    for gradient in mean.gradients:
        dense = tf.convert_to_tensor(gradient)
        assert float(tf.reduce_max(dense)) == pytest.approx(2.0)
