"""The reports and variables of custom steps."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from phalanx.errors import ConfigurationError
from phalanx.train.custom_loop.custom_step import CustomStep, CustomVariables


def test_reports_add_up_to_means_over_examples() -> None:
    step = CustomStep(CustomVariables())
    reports = [
        step.report({"loss": tf.constant(1.0), "error": tf.constant([2.0, 4.0])}, tf.zeros([3])),
        step.report(tf.constant(5.0), tf.zeros([1])),
    ]
    total = np.sum([report.numpy() for report in reports], axis=0)
    assert step.read_report(total) == {"loss": 2.0, "error": 3.0}


def test_number_of_values_is_limited() -> None:
    step = CustomStep(CustomVariables())
    values = {f"value{number}": 0.0 for number in range(17)}
    with pytest.raises(
        ConfigurationError, match="report 17 values beside the loss: report at most"
    ):
        step.report({"loss": 0.0, **values}, None)


def test_copies_are_pushed_and_pulled() -> None:
    variables = CustomVariables()
    with variables.track():
        weight = tf.Variable([1.0, 2.0], name="weight")
        same_name = tf.Variable(7, dtype=tf.int64, name="weight")
    variables.make_copies()
    assert list(variables.copies) == ["weight", "weight_again"]
    weight.assign([3.0, 4.0])
    variables.pull()
    np.testing.assert_array_equal(variables.copies["weight"].numpy(), [3.0, 4.0])
    variables.copies["weight_again"].assign(8)
    variables.push()
    assert int(same_name) == 8


def test_only_a_variable_called_learning_rate_can_be_set() -> None:
    variables = CustomVariables()
    assert np.isnan(variables.learning_rate())
    with pytest.raises(ConfigurationError, match="has a learning rate to set"):
        variables.set_learning_rate(0.5)
    with variables.track():
        rate = tf.Variable(0.1, name="sgd/learning_rate")
    variables.set_learning_rate(0.5)
    assert float(rate) == variables.learning_rate() == 0.5
