"""Custom loops in one process."""

from __future__ import annotations

import subprocess
import sys
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
from phalanx.train.model_dir.metrics_log import read_evaluations, read_training


class Loop:
    """A typical loop, with a model that learns a plane."""

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


def test_loop_learns_saves_and_writes_summaries(tmp_path: Path) -> None:
    loop = Loop(tmp_path, 40, save_summaries_steps=10).run()
    assert loop.values["loss"] < 0.1
    assert set(loop.values) == {"loss", "error"}
    assert (tmp_path / "model.ckpt-40.index").exists()
    assert [point.step for point in read_training(str(tmp_path))] == [10, 20, 30, 40]


def test_loop_resumes_with_weights_and_momentum(tmp_path: Path) -> None:
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


def test_finished_run_does_not_step_again(tmp_path: Path) -> None:
    keras.backend.clear_session()
    Loop(tmp_path, 5).run()
    keras.backend.clear_session()
    assert Loop(tmp_path, 5).run().started_at == -1


def test_tf_function_distributes_itself_and_is_traced_once(tmp_path: Path) -> None:
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


def test_two_steps_report_different_values(tmp_path: Path) -> None:
    loop = Loop(tmp_path, steps=4)

    def other(batch: Any) -> Any:
        return {"loss": loop.step(batch)["loss"], "apart": 7.0}

    reported = []
    with loop.session as session:
        loop.make()
        session.dataset(lambda: tf.data.Dataset.from_tensor_slices(make_points()).batch(16))
        while not session.should_stop():
            reported.append(session.run(other if session.step % 2 else loop.step))
    assert [values.keys() - {"loss"} for values in reported] == [{"error"}, {"apart"}] * 2
    assert reported[1]["apart"] == pytest.approx(7.0)


def test_hooks_can_change_the_learning_rate(tmp_path: Path) -> None:
    def halve(session: Any) -> None:
        session.learning_rate /= 2

    loop = Loop(tmp_path, 4, chief_only_hooks=[hooks.ActionHook(hooks.At(2), halve)]).run()
    assert float(loop.optimizer.learning_rate) == pytest.approx(0.05)


def test_evaluator_loads_and_records_every_checkpoint(tmp_path: Path) -> None:
    keras.backend.clear_session()
    Loop(tmp_path, 4, save_checkpoint_steps=2).run()
    keras.backend.clear_session()
    spec = phalanx.TaskSpecDef("worker", 1, worker_hosts=["a:1", "b:1"])
    spec = spec.use_last_worker_as_evaluator()
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


def test_invalid_use_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="return the loss"):
        Loop(tmp_path / "a").run(lambda batch: None)
    with pytest.raises(ConfigurationError, match="the step creates a variable"):
        Loop(tmp_path / "b").run(lambda batch: keras.layers.Dense(1)(batch[0]))
    with (
        pytest.raises(ConfigurationError, match="no variable was created"),
        phalanx.DistributedSession(phalanx.TaskSpecDef(), str(tmp_path / "c")) as session,
    ):
        session.should_stop()
    loop = Loop(tmp_path / "d")
    with (
        pytest.raises(ConfigurationError, match="the session has no data"),
        loop.session as session,
    ):
        loop.make()
        session.run(loop.step)
    loop = Loop(tmp_path / "e")
    with pytest.raises(DataError, match="is empty"), loop.session as session:
        loop.make()
        session.dataset(lambda: tf.data.Dataset.from_tensor_slices(make_points(4)).skip(9).batch(2))
        session.run(loop.step)
    with (
        pytest.raises(ConfigurationError, match="model_dir is not set"),
        phalanx.DistributedSession(phalanx.TaskSpecDef()),
    ):
        pass


def test_checkpoint_of_one_loop_warm_starts_another(tmp_path: Path) -> None:
    keras.backend.clear_session()
    before = Loop(tmp_path / "old", 5).run()
    keras.backend.clear_session()
    load = hooks.LoadCheckpoint(str(tmp_path / "old"), prefix="sequential/line/")
    after = Loop(tmp_path / "new", 3, chief_only_hooks=[load]).run()
    assert after.started_at == 0
    for variable in before.model.variables:
        np.testing.assert_array_equal(after.first[variable.path], variable.numpy())


class ChangeInLoop(keras.callbacks.Callback):  # type: ignore[misc]
    """Records its calls, changes a weight and the learning rate, and stops the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def on_train_begin(self, logs: Any = None) -> None:
        self.calls.append("begin")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.calls.append(batch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        assert set(logs) == {"loss", "error"}
        if batch == 1:
            self.model.layers[0].bias.assign([7.0])
            self.model.optimizer.learning_rate = 0.0
        self.model.stop_training = batch == 3

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.calls.append(f"epoch {epoch}")

    def on_train_end(self, logs: Any = None) -> None:
        self.calls.append("end")


def test_callbacks_follow_the_loop_and_change_it(tmp_path: Path) -> None:
    class WithModel(Loop):
        def make(self) -> None:
            super().make()
            self.model.compile(self.optimizer)
            self.session.model = self.model

    change = ChangeInLoop()
    saved = keras.callbacks.ModelCheckpoint(
        tmp_path / "{batch}.weights.h5", save_weights_only=True, save_freq=2
    )
    loop = WithModel(tmp_path / "run", steps=9, callbacks=[change, saved]).run()
    assert change.calls == ["begin", 0, 1, 2, 3, "epoch 0", "end"]
    assert loop.session.step == 4
    # The learning rate is 0 and the momentum moves the bias only a little.
    assert float(loop.model.layers[0].bias.numpy()[0]) == pytest.approx(7, abs=1)
    assert float(loop.optimizer.learning_rate.numpy()) == 0
    assert sorted(path.name for path in tmp_path.glob("*.h5")) == ["2.weights.h5", "4.weights.h5"]


def test_callback_without_its_model_is_rejected(tmp_path: Path) -> None:
    plateau = keras.callbacks.ReduceLROnPlateau()
    with pytest.raises(ConfigurationError, match=r"ReduceLROnPlateau needs .* set session\.model"):
        Loop(tmp_path, callbacks=[plateau]).run()
    with pytest.raises(ConfigurationError, match=r"is no keras\.callbacks\.Callback"):
        Loop(tmp_path, callbacks=[3])


def test_arguments_of_the_session_for_graphs_are_explained(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    v1 = tf.compat.v1
    graph_config = v1.ConfigProto()
    loop = Loop(tmp_path, config=graph_config, stop_grace_period_secs=5, save_summaries_secs=0.001)
    assert "config has no effect" in caplog.text
    assert "stop_grace_period_secs has no effect" in caplog.text
    loop.run()
    assert list(tmp_path.glob("events.*"))
    for wrong in (
        {"scaffold": v1.train.Scaffold()},
        {"chief_only_hooks": [v1.train.NanTensorHook]},
    ):
        with pytest.raises(ConfigurationError, match=r"phalanx\.compat\.tf1\.distributed"):
            Loop(tmp_path, **wrong)
    with pytest.raises(ConfigurationError, match=r"give LoadCheckpoint .* the checkpoint alone"):
        hooks.LoadCheckpoint(v1.train.Saver([tf.Variable(0)]), "model.ckpt-1")


def test_graph_mode_is_rejected_by_name() -> None:
    code = (
        "import tensorflow as tf, phalanx\n"
        "tf.compat.v1.disable_v2_behavior()\n"
        "phalanx.DistributedSession(checkpoint_dir='unused')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=280
    )
    assert "this program builds a graph (eager execution is off)" in done.stderr
    assert "phalanx.compat.tf1.distributed" in done.stderr
