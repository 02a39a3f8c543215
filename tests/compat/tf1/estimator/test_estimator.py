"""Estimator: training, evaluation, prediction, export and its errors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from tests.compat.tf1.estimator.conftest import POINTS, VALUES, model_fn
from tests.security.test_checkpoint_index import HEADER, make_block, make_entry, make_table, write

from phalanx.compat.tf1.estimator import (
    Estimator,
    EstimatorSpec,
    ModeKeys,
    RunConfig,
    WarmStartSettings,
    export,
)
from phalanx.compat.tf1.estimator.inputs import numpy_input_fn
from phalanx.errors import CheckpointError
from phalanx.train.model_dir.warm_start import warm_start

Input = Callable[[], Any]
MakeEstimator = Callable[..., Estimator]


def test_train_evaluate_and_predict(
    make_estimator: MakeEstimator, train_input: Input, eval_input: Input
) -> None:
    estimator = make_estimator()
    assert estimator.train(train_input, max_steps=100) is estimator
    metrics = estimator.evaluate(eval_input)
    assert metrics["global_step"] == 100
    assert metrics["loss"] < 1e-3
    assert metrics["error"] < 0.05
    features = numpy_input_fn({"x": POINTS[:5]}, shuffle=False, batch_size=2)
    predictions = list(estimator.predict(features, predict_keys="y"))
    assert [list(each) for each in predictions] == [["y"]] * 5
    np.testing.assert_allclose([each["y"] for each in predictions], VALUES[:5], atol=0.05)
    [first, *_] = estimator.predict(features, yield_single_examples=False)
    assert first["twice"].shape == (2, 1)


def test_training_continues_at_the_latest_checkpoint(
    make_estimator: MakeEstimator, train_input: Input, eval_input: Input
) -> None:
    make_estimator().train(train_input, steps=30)
    again = make_estimator()
    again.train(train_input, steps=10)
    assert again.evaluate(eval_input, steps=1)["global_step"] == 40
    before = Path(str(again.latest_checkpoint()) + ".index").stat().st_mtime_ns
    again.train(train_input, max_steps=40)
    assert Path(str(again.latest_checkpoint()) + ".index").stat().st_mtime_ns == before


def test_checkpoints_of_earlier_calls_of_train_are_deleted(
    train_input: Input, tmp_path: Path
) -> None:
    config = RunConfig(keep_checkpoint_max=2, save_checkpoints_steps=100)
    estimator = Estimator(model_fn, tmp_path, config, {"rate": 0.2})
    for _ in range(3):
        estimator.train(train_input, steps=10)
    kept = sorted(path.name for path in tmp_path.glob("*.index"))
    assert kept == ["model.ckpt-20.index", "model.ckpt-30.index"]


@pytest.mark.parametrize("wrong", [object(), tf.train.SessionRunHook])
def test_what_is_no_hook_is_refused(
    make_estimator: MakeEstimator, train_input: Input, wrong: Any
) -> None:
    for call in ("train", "evaluate"):
        with pytest.raises(TypeError, match=r"hooks has .*: pass objects of a tf\.train\.Session"):
            getattr(make_estimator(), call)(train_input, hooks=[wrong], steps=1)


def test_variables_are_read_from_the_latest_checkpoint(
    make_estimator: MakeEstimator, train_input: Input
) -> None:
    estimator = make_estimator()
    estimator.train(train_input, max_steps=60)
    assert set(estimator.get_variable_names()) == {"global_step", "linear/weights", "linear/bias"}
    assert estimator.get_variable_value("linear/bias") == pytest.approx(0.5, abs=0.1)
    assert estimator.eval_dir("test") == f"{estimator.model_dir}/eval_test"
    assert estimator.params == {"rate": 0.2}


def test_summaries_of_training_and_evaluation_are_written(
    make_estimator: MakeEstimator, train_input: Input, eval_input: Input
) -> None:
    estimator = make_estimator()
    estimator.train(train_input, max_steps=20)
    estimator.evaluate(eval_input, name="all")

    def tags(directory: str) -> set[str]:
        tf.summary.FileWriterCache.clear()
        files = sorted(Path(directory).glob("events*"))
        events = (event for file in files for event in tf.train.summary_iterator(str(file)))
        return {value.tag for event in events for value in event.summary.value}

    assert "loss" in tags(estimator.model_dir)
    assert {"loss", "error"} <= tags(estimator.eval_dir("all"))


def test_warm_start_takes_the_variables_that_match(
    make_estimator: MakeEstimator, train_input: Input
) -> None:
    make_estimator().train(train_input, max_steps=60)
    source = str(make_estimator().latest_checkpoint())
    everything = make_estimator(0.0, "everything", warm_start_from=source)
    everything.train(train_input, steps=1)
    assert everything.get_variable_value("linear/bias") == pytest.approx(0.5, abs=0.1)
    settings = WarmStartSettings(source, vars_to_warm_start=".*weights")
    weights = make_estimator(0.0, "weights", warm_start_from=settings)
    weights.train(train_input, steps=1)
    assert weights.get_variable_value("linear/bias") == 0
    assert weights.get_variable_value("linear/weights")[2] == pytest.approx(3, abs=0.1)


def test_model_starts_warm_before_it_is_trained(
    make_estimator: MakeEstimator, train_input: Input, eval_input: Input, tmp_path: Path
) -> None:
    source = make_estimator()
    source.train(train_input, max_steps=60)
    trained = source.evaluate(eval_input)["loss"]

    with tf.Graph().as_default():
        features = {"x": tf.placeholder(tf.float32, [None, 3])}
        receive = export.build_raw_serving_input_receiver_fn(features)
    saved = source.export_saved_model(tmp_path / "export", receive).decode()
    # A directory with checkpoints, a checkpoint, and a SavedModel.
    for number, path in enumerate((source.model_dir, source.latest_checkpoint(), saved)):
        warm = make_estimator(0.0, f"warm{number}", warm_start_from=path)
        assert warm.evaluate(eval_input)["loss"] == pytest.approx(trained)
        [first] = warm.predict(numpy_input_fn({"x": POINTS[:1]}, shuffle=False))
        assert first["y"] == pytest.approx(VALUES[0], abs=0.05)
        assert warm.export_saved_model(tmp_path / f"export{number}", receive)


def test_hostile_warm_start_is_an_error(
    make_estimator: MakeEstimator, train_input: Input, tmp_path: Path
) -> None:
    table = make_table(make_block([HEADER, (b"linear/bias", make_entry(1, [-5], 48))]))
    path = write(tmp_path / "hostile", table)
    with pytest.raises(CheckpointError, match="is damaged"):
        make_estimator(0.0, "warm", warm_start_from=path).train(train_input, steps=1)


def test_missing_warm_start_is_described(
    make_estimator: MakeEstimator, train_input: Input, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    for missing in (tmp_path / "gone", tmp_path / "empty", tmp_path / "model.ckpt-7"):
        estimator = make_estimator(directory="new", warm_start_from=missing)
        with pytest.raises(ValueError, match=f"{missing}, but there is no checkpoint: name a chec"):
            estimator.train(train_input, steps=1)


def test_export_has_the_signature_of_the_model(
    make_estimator: MakeEstimator, train_input: Input, tmp_path: Path
) -> None:
    estimator = make_estimator()
    with pytest.raises(ValueError, match="has no checkpoint to export"):
        estimator.export_saved_model(tmp_path, lambda: None)
    estimator.train(train_input, max_steps=60)
    (tmp_path / "labels.txt").write_text("one\n")
    spec = {"x": tf.FixedLenFeature([3], tf.float32)}
    path = estimator.export_savedmodel(
        tmp_path / "export",
        export.build_parsing_serving_input_receiver_fn(spec),
        assets_extra={"labels.txt": str(tmp_path / "labels.txt")},
    ).decode()
    assert Path(path, "assets.extra/labels.txt").read_text() == "one\n"
    example = tf2.train.Example()
    example.features.feature["x"].float_list.value.extend(POINTS[0])
    signature = tf2.saved_model.load(path).signatures["serving_default"]
    outputs = signature(examples=tf2.constant([example.SerializeToString()]))
    np.testing.assert_allclose(outputs["y"].numpy(), VALUES[:1], atol=0.2)


def test_hooks_of_spec_and_call_run(make_estimator: MakeEstimator, train_input: Input) -> None:
    calls: list[str] = []

    class Hook(tf.train.SessionRunHook):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            self.name = name

        def end(self, session: Any) -> None:
            calls.append(self.name)

    def with_hooks(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        spec = model_fn(features, labels, mode, params)
        return EstimatorSpec(
            mode,
            spec.predictions,
            spec.loss,
            spec.train_op,
            training_hooks=(Hook("train"),),
            training_chief_hooks=(Hook("chief"),),
            prediction_hooks=(Hook("predict"),),
            evaluation_hooks=(Hook("evaluate"),),
        )

    directory = make_estimator().model_dir
    estimator = Estimator(with_hooks, directory, params={"rate": 0.1})
    estimator.train(train_input, hooks=[Hook("call")], steps=2)
    assert sorted(calls) == ["call", "chief", "train"]
    estimator.evaluate(train_input, steps=1)
    list(estimator.predict(numpy_input_fn({"x": POINTS[:1]}, shuffle=False)))
    assert calls[3:] == ["evaluate", "predict"]


def spec_without(name: str) -> Callable[..., EstimatorSpec]:
    def build(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        found = {"loss": tf.reduce_sum(features["x"]), "train_op": tf.no_op()}
        return EstimatorSpec(mode, **{k: v for k, v in found.items() if k != name})

    return build


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (spec_without("train_op"), "the model_fn returned no train_op in mode TRAIN"),
        (spec_without("loss"), "the model_fn returned no loss in mode 'train'"),
        (lambda features, labels, mode: None, "the model_fn returned a NoneType"),
        (lambda features: None, "the input_fn returns labels, but the model_fn takes no labels"),
        (
            lambda features, labels, mode: EstimatorSpec(mode, loss=features["x"], train_op=1),
            "the loss has the shape .* must be a scalar",
        ),
    ],
)
def test_wrong_model_fn_is_described(
    build: Callable[..., Any], error: str, train_input: Input, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=error):
        Estimator(build, tmp_path).train(train_input, steps=1)


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda x: None, "must take an argument named features"),
        (lambda features, rate: None, r"takes \['rate'\], but it is called with features, labels"),
        (None, "model_fn is None"),
    ],
)
def test_wrong_arguments_of_a_model_fn_are_described(build: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        Estimator(build)


@pytest.mark.parametrize(
    ("input_fn", "error"),
    [
        (lambda: None, "the input_fn returned features of None"),
        (lambda: ({"x": POINTS}, VALUES), "the input_fn returned features of ndarray"),
        (lambda: (1, 2, 3), "the input_fn returned 3 things: return .features, labels."),
        (lambda files: files, "the input_fn takes files, but it is called with mode, params and"),
    ],
)
def test_wrong_input_fn_is_described(
    make_estimator: MakeEstimator, input_fn: Input, error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        make_estimator().train(input_fn, steps=1)
    with pytest.raises(TypeError, match="pass a function that returns the data"):
        make_estimator().train(POINTS, steps=1)  # type: ignore[arg-type]


def test_training_without_the_global_step_is_warned_of(
    make_estimator: MakeEstimator, eval_input: Input, caplog: pytest.LogCaptureFixture
) -> None:
    def forgetful(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        weights = tf.get_variable("weights", [3, 1])
        loss = tf.losses.mean_squared_error(labels, tf.matmul(features["x"], weights))
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        return EstimatorSpec(mode, loss=loss, train_op=train_op)

    make_estimator().train(eval_input, max_steps=2)
    assert not caplog.records
    estimator = Estimator(forgetful, make_estimator(directory="other").model_dir)
    estimator.train(eval_input, max_steps=2)
    assert "the train_op does not increase the global step" in caplog.text


def test_contradictory_settings_are_rejected(
    make_estimator: MakeEstimator, train_input: Input
) -> None:
    with pytest.raises(ValueError, match="both steps and max_steps"):
        make_estimator().train(train_input, steps=1, max_steps=2)
    with pytest.raises(ValueError, match="steps is 0: it must be at least 1"):
        make_estimator().train(train_input, steps=0)
    with pytest.raises(ValueError, match="model_dir is a, but that of the config is b"):
        Estimator(model_fn, "a", RunConfig("b"))
    with pytest.raises(ValueError, match="there is no prediction 'z': there are"):
        list(make_estimator().predict(train_input, predict_keys=["z"]))


def test_mode_keys() -> None:
    assert (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT) == ("train", "eval", "infer")


def test_checkpoint_of_an_estimator_starts_a_keras_model(
    make_estimator: MakeEstimator, train_input: Input
) -> None:
    estimator = make_estimator()
    estimator.train(train_input, max_steps=60)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, name="dense")])
    names = {"dense/kernel": "linear/weights"}
    kernel, bias = model.weights
    warm_start({"dense/kernel": kernel}, model, estimator.model_dir, "", names)
    np.testing.assert_allclose(kernel.numpy(), estimator.get_variable_value("linear/weights"))
    assert bias.numpy() == 0
