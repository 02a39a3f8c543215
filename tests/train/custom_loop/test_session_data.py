"""The data of custom loops."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.custom_loop.session_data import SessionData
from phalanx.train.runtime.worker_data import read_graph, shuffles_before_shard


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
