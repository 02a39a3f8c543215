"""The reports, variables and data of custom steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.custom_loop.custom_step import CustomStep, CustomVariables, SessionData
from phalanx.train.runtime.worker_data import read_graph, shuffles_before_shard


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


def test_dataset_created_outside_cannot_be_sent_to_workers() -> None:
    outside = tf.data.Dataset.range(9)
    data = SessionData(lambda: outside.batch(3), phalanx.TaskSpecDef())
    with pytest.raises(ConfigurationError, match="create the whole dataset inside"):
        data.check_can_be_sent(phalanx.Context())
    inside = SessionData(lambda: tf.data.Dataset.range(9).batch(3), phalanx.TaskSpecDef())
    inside.check_can_be_sent(phalanx.Context())


def test_data_that_calls_python_cannot_be_sent_to_workers() -> None:
    def make() -> Any:
        return tf.data.Dataset.range(4).map(lambda x: tf.numpy_function(abs, [x], tf.int64))

    with pytest.raises(ConfigurationError, match=r"calls Python .* each worker creates its data"):
        SessionData(make, phalanx.TaskSpecDef()).check_can_be_sent(phalanx.Context())


def test_shuffle_before_shard_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    data = tf.data.Dataset.range(9)

    def is_shuffled(make: Callable[[Any], Any]) -> bool:
        """The same answer for a dataset and for a function that makes it, as workers run it."""
        function = tf.function(lambda: make(tf.data.Dataset.range(9)), autograph=False)
        found = shuffles_before_shard(read_graph(make(data)))
        made = function.get_concrete_function().graph.as_graph_def()
        assert shuffles_before_shard(made) is found
        return found

    assert is_shuffled(lambda it: it.shuffle(9).map(lambda x: x + 1).shard(2, 0).batch(2))
    assert not is_shuffled(lambda it: it.shard(2, 0).shuffle(9).batch(2))
    assert not is_shuffled(lambda it: it.shuffle(9).batch(2))
    logging.getLogger("phalanx").propagate = True
    shuffled = SessionData(
        lambda context: data.shuffle(9).shard(context.num_shards, context.shard),
        phalanx.TaskSpecDef(),
    )
    shuffled.make_shard(phalanx.Context(num_shards=2, shard=1))
    assert "shard first, then shuffle" in caplog.text


def test_task_spec_reports_the_shard_whose_data_is_built() -> None:
    spec = phalanx.TaskSpecDef("worker", 0, None, "p:1", "a:1,b:1,c:1")
    data = SessionData(
        lambda: tf.data.Dataset.range(6).shard(spec.num_workers, spec.shard_index), spec
    )
    shard = data.make_shard(phalanx.Context(num_shards=2, shard=1))
    assert list(shard.as_numpy_iterator()) == [1, 3, 5]
    assert (spec.num_workers, spec.shard_index) == (3, 0)
