"""RunConfig(train_distribute=..., eval_distribute=...) with several devices of one process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow.compat.v1 as tf
from tests.compat.tf1.estimator.conftest import POINTS, VALUES, model_fn

from phalanx.compat.tf1.contrib import distribute
from phalanx.compat.tf1.estimator import (
    Estimator,
    EstimatorSpec,
    EvalSpec,
    RunConfig,
    TrainSpec,
    train_and_evaluate,
)
from phalanx.errors import ConfigurationError

STEPS = 30


def make_input(batch_size: int, epochs: int | None = None) -> Callable[[], Any]:
    def input_fn() -> Any:
        data = tf.data.Dataset.from_tensor_slices(({"x": POINTS}, VALUES))
        return data.repeat(epochs).batch(batch_size)

    return input_fn


def mirrored(replicas: int) -> Any:
    # As in a program without eager execution.
    with tf.Graph().as_default():
        return distribute.MirroredStrategy([f"/cpu:{index}" for index in range(replicas)])


def make(directory: Path, function: Callable[..., Any] = model_fn, **settings: Any) -> Estimator:
    config = RunConfig(save_checkpoints_steps=20, save_summary_steps=10, **settings)
    return Estimator(function, directory, config, {"rate": 0.1})


def weights(trained: Estimator) -> list[float]:
    found: list[float] = trained.get_variable_value("linear/weights").ravel().tolist()
    return found


@pytest.mark.parametrize("replicas", [2, 4])
def test_replicas_train_as_one_with_the_same_global_batch(tmp_path: Path, replicas: int) -> None:
    alone = make(tmp_path / "one").train(make_input(40), steps=STEPS)
    together = make(tmp_path / "many", train_distribute=mirrored(replicas))
    together.train(make_input(40 // replicas), steps=STEPS)
    assert together.saved_step() == STEPS
    assert weights(together) == pytest.approx(weights(alone), rel=1e-5)
    assert together.get_variable_names() == alone.get_variable_names()


def test_evaluation_counts_the_batches_of_all_replicas(tmp_path: Path) -> None:
    alone = make(tmp_path).train(make_input(40), steps=STEPS)
    expected = alone.evaluate(make_input(40, epochs=1))
    together = make(tmp_path, eval_distribute=mirrored(2))
    # Ten batches, two in each step.
    found = together.evaluate(make_input(20, epochs=1))
    assert found == pytest.approx(expected, rel=1e-5)
    assert found["global_step"] == STEPS


def test_evaluation_counts_the_last_batches_that_only_some_replicas_get(tmp_path: Path) -> None:
    alone = make(tmp_path).train(make_input(40), steps=2)
    expected = alone.evaluate(make_input(40, epochs=1))
    # What one replica lacks must never cancel another, however they race.
    for replicas in (2, 3, 4, 2, 3, 4, 2, 3, 4, 8):
        together = make(tmp_path, eval_distribute=mirrored(replicas))
        found = together.evaluate(make_input(40, epochs=1))
        assert found == pytest.approx(expected, rel=1e-5)


def test_evaluation_on_replicas_stops_after_steps_and_calls_hooks(tmp_path: Path) -> None:
    alone = make(tmp_path).train(make_input(40), steps=2)
    expected = alone.evaluate(make_input(40, epochs=1), steps=4)
    seen = []

    class Read(tf.train.SessionRunHook):  # type: ignore[misc]
        def before_run(self, run_context: Any) -> Any:
            loss = run_context.session.graph.get_tensor_by_name("mean_squared_error/value:0")
            return tf.train.SessionRunArgs(loss)

        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(run_values.results)

    together = make(tmp_path, eval_distribute=mirrored(2))
    assert together.evaluate(make_input(40), steps=2, hooks=[Read()]) == pytest.approx(
        expected, rel=1e-5
    )
    assert len(seen) == 2


def test_replicas_train_in_rounds_with_hooks_and_summaries(tmp_path: Path) -> None:
    runs = []

    class Count(tf.train.SessionRunHook):  # type: ignore[misc]
        def after_run(self, run_context: Any, run_values: Any) -> None:
            runs.append(1)

    def network_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        weights = tf.get_variable("weights", [3, 1])
        bias = tf.get_variable("bias", [], initializer=tf.zeros_initializer())
        outputs = tf.matmul(features["x"], weights) + bias
        loss = tf.losses.mean_squared_error(labels, outputs)
        tf.summary.scalar("mean", tf.reduce_mean(outputs))
        optimizer = tf.train.AdamOptimizer(0.1)
        return EstimatorSpec(
            mode,
            loss=loss,
            train_op=optimizer.minimize(loss, tf.train.get_global_step()),
            eval_metric_ops={"error": tf.metrics.mean_absolute_error(labels, outputs)},
            training_hooks=[Count()],
        )

    config = RunConfig(
        tmp_path,
        save_checkpoints_steps=50,
        experimental_distribute=distribute.DistributeConfig(mirrored(2), mirrored(2)),
    )
    trained = Estimator(network_fn, config=config)
    train_spec = TrainSpec(make_input(20), max_steps=200)
    result = train_and_evaluate(trained, train_spec, EvalSpec(make_input(20, epochs=1), steps=None))
    assert result is not None and result[0] is not None
    assert result[0]["error"] < 0.5
    assert trained.saved_step() == len(runs) == 200
    # It goes on from its checkpoint, also on one device.
    again = Estimator(network_fn, tmp_path).train(make_input(40), steps=5)
    assert again.saved_step() == 205


def test_input_without_a_dataset_is_refused(tmp_path: Path) -> None:
    def tensors() -> Any:
        return {"x": tf.constant(POINTS)}, tf.constant(VALUES)

    trained = make(tmp_path, train_distribute=mirrored(2))
    with pytest.raises(ValueError, match=r"returned a tuple.*return a tf\.data\.Dataset"):
        trained.train(tensors, steps=1)


def test_more_gpus_than_there_are_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="num_gpus is 99, but this machine has"):
        distribute.MirroredStrategy(num_gpus=99)


def test_configurations_that_start_other_tasks_are_refused(tmp_path: Path) -> None:
    wrong = distribute.DistributeConfig(remote_cluster={"worker": ["a:1"]})
    with pytest.raises(ConfigurationError, match="remote_cluster"):
        make(tmp_path, experimental_distribute=wrong)
    with pytest.raises(ConfigurationError, match=r"is a str: it must be a .*DistributeConfig"):
        make(tmp_path, experimental_distribute="mirrored")
