"""A loop of one's own has what an experiment has: here in one process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.train.small_experiment import make_points

import phalanx
from phalanx import hooks
from phalanx.errors import ConfigurationError, DataError
from phalanx.train.custom_loop.session_data import SessionData
from phalanx.train.model_dir.metrics_log import read_evaluations, read_training
from phalanx.train.runtime.dataset_graph import graph_of, shuffles_before_shard


class Loop:
    """The usual loop, with a model that learns a plane."""

    def __init__(self, directory: Path, steps: int = 5, **settings: Any) -> None:
        stop = hooks.StopAtStepHook(steps)
        spec = phalanx.TaskSpecDef()
        self.session = phalanx.DistributedSession(spec, str(directory), [stop], **settings)
        self.started_at = -1
        self.values: dict[str, float] = {}

    def make(self) -> None:
        with self.session.scope():
            self.model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="line")])
            self.optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
            self.optimizer.build(self.model.trainable_variables)

    def step(self, batch: Any) -> Any:
        x, y = batch
        with tf.GradientTape() as tape:
            error = self.model(x, training=True) - y
            loss = tf.reduce_mean(error**2)
        gradients = tape.gradient(loss, self.model.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_weights, strict=True))
        return {"loss": loss, "error": tf.abs(error)}

    def run(self, step: Callable[..., Any] | None = None) -> Loop:
        with self.session as session:
            self.make()
            session.dataset(lambda: tf.data.Dataset.from_tensor_slices(make_points()).batch(16))
            while not session.should_stop():
                if self.started_at < 0:
                    self.started_at = session.step
                    self.first = {v.path: v.numpy() for v in self.model.variables}
                self.values = session.run(step or self.step)
        return self

    def weights(self) -> dict[str, Any]:
        return {v.path: v.numpy() for v in [*self.model.variables, *self.optimizer.variables]}


def test_it_learns_saves_and_writes_curves(tmp_path: Path) -> None:
    loop = Loop(tmp_path, 40, save_summaries_steps=10).run()
    assert loop.values["loss"] < 0.1
    assert set(loop.values) == {"loss", "error"}
    assert (tmp_path / "model.ckpt-40.index").exists()
    assert [point.step for point in read_training(str(tmp_path))] == [10, 20, 30, 40]


def test_it_goes_on_where_it_was_with_weights_and_momentum(tmp_path: Path) -> None:
    keras.backend.clear_session()
    before = Loop(tmp_path, 5).run()
    keras.backend.clear_session()
    after = Loop(tmp_path, 8)
    with after.session as session:
        after.make()
        session.dataset(lambda: tf.data.Dataset.from_tensor_slices(make_points()).batch(16))
        assert not session.should_stop()
        assert session.step == 5
        for name, value in before.weights().items():
            np.testing.assert_array_equal(after.weights()[name], value, err_msg=name)
        while not session.should_stop():
            session.run(after.step)
        assert session.step == 8


def test_a_run_that_is_done_does_not_step_again(tmp_path: Path) -> None:
    keras.backend.clear_session()
    Loop(tmp_path, 5).run()
    keras.backend.clear_session()
    assert Loop(tmp_path, 5).run().started_at == -1


def test_a_function_that_distributes_itself_is_called_as_it_is(tmp_path: Path) -> None:
    loop = Loop(tmp_path, 6)
    calls = []

    @tf.function  # type: ignore[untyped-decorator]
    def step(batch: Any) -> Any:
        calls.append(1)
        return loop.step(batch)

    loop.run(step)
    assert len(calls) == 1
    assert loop.values["loss"] > 0
    assert (tmp_path / "model.ckpt-6.index").exists()


def test_a_step_without_data_takes_no_batch(tmp_path: Path) -> None:
    stop = hooks.StopAtStepHook(3)
    session = phalanx.DistributedSession(phalanx.TaskSpecDef(), str(tmp_path), [stop])
    with session:
        with session.scope():
            number = tf.Variable(8.0, name="number")

        def halve() -> Any:
            number.assign(number / 2)
            return number.read_value()

        while not session.should_stop():
            values = session.run(halve)
        assert values == {"loss": 1.0}


def test_two_steps_tell_values_of_their_own(tmp_path: Path) -> None:
    loop = Loop(tmp_path, steps=4)

    def other(batch: Any) -> Any:
        return {"loss": loop.step(batch)["loss"], "apart": 7.0}

    told = []
    with loop.session as session:
        loop.make()
        session.dataset(lambda: tf.data.Dataset.from_tensor_slices(make_points()).batch(16))
        while not session.should_stop():
            told.append(session.run(other if session.step % 2 else loop.step))
    assert [values.keys() - {"loss"} for values in told] == [{"error"}, {"apart"}] * 2
    assert told[1]["apart"] == pytest.approx(7.0)


def test_hooks_can_change_the_learning_rate(tmp_path: Path) -> None:
    def halve(session: Any) -> None:
        session.learning_rate /= 2

    loop = Loop(tmp_path, 4, chief_only_hooks=[hooks.ActionHook(hooks.At(2), halve)]).run()
    assert float(loop.optimizer.learning_rate) == pytest.approx(0.05)


def test_an_evaluator_sees_every_checkpoint_and_records_it(tmp_path: Path) -> None:
    keras.backend.clear_session()
    Loop(tmp_path, 4, save_checkpoint_steps=2).run()
    keras.backend.clear_session()
    spec = phalanx.TaskSpecDef("worker", 1, worker_hosts=["a:1", "b:1"])
    spec.use_last_worker_as_evaluator()
    session = phalanx.DistributedSession(spec, str(tmp_path), wait_seconds=1)
    x, y = make_points()
    evaluator = Loop(tmp_path)
    evaluator.session = session
    with session:
        evaluator.make()
        for _ in session.checkpoints():
            session.record(loss=float(np.mean((evaluator.model(x) - y) ** 2)))
    found = read_evaluations(str(tmp_path))
    assert [evaluation.step for evaluation in found] == [0, 2, 4]
    losses = [evaluation.values["loss"] for evaluation in found]
    assert losses[-1] < losses[0]


def refuse(directory: Path, reason: str, error: type[Exception] = ConfigurationError) -> Any:
    return pytest.raises(error, match=reason)


def test_what_cannot_work_is_said(tmp_path: Path) -> None:
    with refuse(tmp_path, "return the loss"):
        Loop(tmp_path / "a").run(lambda batch: None)
    with refuse(tmp_path, "the step creates a variable"):
        Loop(tmp_path / "b").run(lambda batch: keras.layers.Dense(1)(batch[0]))
    with (
        refuse(tmp_path, "no variable was created"),
        phalanx.DistributedSession(phalanx.TaskSpecDef(), str(tmp_path / "c")) as session,
    ):
        session.should_stop()
    loop = Loop(tmp_path / "d")
    with refuse(tmp_path, "the session has no data"), loop.session as session:
        loop.make()
        session.run(loop.step)
    loop = Loop(tmp_path / "e")
    with refuse(tmp_path, "is empty", DataError), loop.session as session:
        loop.make()
        session.dataset(lambda: tf.data.Dataset.from_tensor_slices(make_points(4)).skip(9).batch(2))
        session.run(loop.step)
    with (
        refuse(tmp_path, "model_dir is not set"),
        phalanx.DistributedSession(phalanx.TaskSpecDef()),
    ):
        pass


def test_a_dataset_made_outside_cannot_travel_to_workers() -> None:
    outside = tf.data.Dataset.range(9)
    data = SessionData(lambda: outside.batch(3), phalanx.TaskSpecDef())
    with pytest.raises(ConfigurationError, match="create the whole dataset inside"):
        data.check_can_be_sent(phalanx.Context())
    inside = SessionData(lambda: tf.data.Dataset.range(9).batch(3), phalanx.TaskSpecDef())
    inside.check_can_be_sent(phalanx.Context())


def test_python_in_the_data_cannot_travel_to_workers() -> None:
    def make() -> Any:
        return tf.data.Dataset.range(4).map(lambda x: tf.numpy_function(abs, [x], tf.int64))

    with pytest.raises(ConfigurationError, match=r"calls Python .* each worker creates its data"):
        SessionData(make, phalanx.TaskSpecDef()).check_can_be_sent(phalanx.Context())


def test_a_shuffle_before_the_shard_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    data = tf.data.Dataset.range(9)

    def is_shuffled(make: Callable[[Any], Any]) -> bool:
        """The same answer for a dataset and for a function that makes it, as it is sent to ps."""
        function = tf.function(lambda: make(tf.data.Dataset.range(9)), autograph=False)
        found = shuffles_before_shard(graph_of(make(data)))
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


def test_while_data_is_made_the_task_spec_stands_in_for_its_worker() -> None:
    spec = phalanx.TaskSpecDef("worker", 0, None, "p:1", "a:1,b:1,c:1")
    data = SessionData(
        lambda: tf.data.Dataset.range(6).shard(spec.num_workers, spec.shard_index), spec
    )
    shard = data.make_shard(phalanx.Context(num_shards=2, shard=1))
    assert list(shard.as_numpy_iterator()) == [1, 3, 5]
    assert (spec.num_workers, spec.shard_index) == (3, 0)


def test_weights_of_one_loop_warm_start_another(tmp_path: Path) -> None:
    keras.backend.clear_session()
    before = Loop(tmp_path / "old", 5).run()
    keras.backend.clear_session()
    load = hooks.LoadCheckpoint(str(tmp_path / "old"), prefix="sequential/line/")
    after = Loop(tmp_path / "new", 3, chief_only_hooks=[load]).run()
    assert after.started_at == 0
    for variable in before.model.variables:
        np.testing.assert_array_equal(after.first[variable.path], variable.numpy())
