"""The canned estimators, in one process."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from phalanx.compat.tf1 import estimator
from phalanx.compat.tf1.contrib import estimator as contrib_estimator
from phalanx.compat.tf1.estimator import inputs
from phalanx.errors import ConfigurationError

RANDOM = np.random.RandomState(0)
X = RANDOM.randn(600, 2).astype(np.float32)
KIND = RANDOM.choice(["a", "b", "c"], 600)
FEATURES = {"x": X, "kind": KIND, "weight": np.ones(600, np.float32)}
SIDES = (X[:, 0] + (KIND == "a") > 0.3).astype(np.int64)
CORNERS = (X[:, 0] > 0).astype(np.int64) + 2 * (X[:, 1] > 0)
VALUES = X @ np.array([2, -1], np.float32) + (KIND == "b")


def columns() -> tuple[list[Any], list[Any]]:
    kind = tf.feature_column.categorical_column_with_vocabulary_list("kind", ["a", "b", "c"])
    x = tf.feature_column.numeric_column("x", shape=[2])
    return [x, kind], [x, tf.feature_column.indicator_column(kind)]


def fit(model: estimator.Estimator, labels: Any, steps: int = 300) -> dict[str, Any]:
    train = inputs.numpy_input_fn(FEATURES, labels, batch_size=64, num_epochs=None, shuffle=True)
    model.train(train, steps=steps)
    return model.evaluate(inputs.numpy_input_fn(FEATURES, labels, shuffle=False))


def test_classifiers_learn_two_classes(tmp_path: Path) -> None:
    wide, deep = columns()
    linear = estimator.LinearClassifier(wide, tmp_path / "linear", weight_column="weight")
    metrics = fit(linear, SIDES)
    assert metrics["accuracy"] > 0.95
    assert metrics["auc"] > 0.98
    assert metrics["accuracy_baseline"] == pytest.approx(max(SIDES.mean(), 1 - SIDES.mean()))
    assert metrics["average_loss"] < 0.3
    both = estimator.DNNLinearCombinedClassifier(
        tmp_path / "both",
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[16],
    )
    assert fit(both, SIDES)["accuracy"] > 0.95
    assert "dnn/hiddenlayer_0/kernel" in both.get_variable_names()


def test_classifier_learns_from_a_data_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    column = tf.feature_column
    names = column.categorical_column_with_vocabulary_list("kind", ["a", "b", "c"])
    wide = [column.numeric_column("east"), column.numeric_column("north"), names]
    frame = pandas.DataFrame({"east": X[:, 0], "north": X[:, 1], "kind": KIND, "number": 1})
    side = pandas.Series(np.where(SIDES, "right", "left"))
    model = estimator.LinearClassifier(wide, tmp_path, label_vocabulary=["left", "right"])
    train = inputs.pandas_input_fn(frame, side, batch_size=64, num_epochs=None, shuffle=True)
    model.train(train, steps=300)
    assert model.evaluate(inputs.pandas_input_fn(frame, side, shuffle=False))["accuracy"] > 0.95
    [first] = model.predict(inputs.pandas_input_fn(frame[:1], shuffle=False))
    assert first["classes"][0].decode() == side[0]
    with pytest.raises(ValueError, match="x and y have different indices"):
        inputs.pandas_input_fn(frame[1:], side, shuffle=False)
    with pytest.raises(ValueError, match="'kind' is a column of x: set target_column"):
        inputs.pandas_input_fn(frame, side, shuffle=False, target_column="kind")


def test_classifier_with_names_of_classes(tmp_path: Path) -> None:
    names = ["south-west", "south-east", "north-west", "north-east"]
    model = estimator.DNNClassifier(
        [16],
        columns()[1],
        tmp_path,
        n_classes=4,
        label_vocabulary=names,
        optimizer=lambda: tf.train.AdamOptimizer(0.01),
    )
    assert fit(model, np.array(names)[CORNERS])["accuracy"] > 0.9
    few = {name: each[:3] for name, each in FEATURES.items()}
    predictions = list(model.predict(inputs.numpy_input_fn(few, shuffle=False)))
    assert predictions[0]["probabilities"].shape == (4,)
    assert predictions[0]["classes"][0].decode() in names
    spec = tf.feature_column.make_parse_example_spec(columns()[1])
    receiver = estimator.export.build_parsing_serving_input_receiver_fn(spec)
    assert model.export_saved_model(tmp_path / "export", receiver)


def test_regressions(tmp_path: Path) -> None:
    wide, deep = columns()
    linear = estimator.LinearRegressor(wide, tmp_path / "linear")
    assert fit(linear, VALUES)["average_loss"] < 0.1
    network = estimator.DNNRegressor([16], deep, tmp_path / "deep", optimizer="Adam")
    assert fit(network, VALUES, 100)["average_loss"] < 1
    head = estimator.RegressionHead()
    own = estimator.LinearEstimator(head, wide, tmp_path / "own")
    assert fit(own, VALUES)["average_loss"] < 0.1


def test_baseline_predicts_the_frequencies(tmp_path: Path) -> None:
    metrics = fit(estimator.BaselineClassifier(tmp_path), SIDES)
    assert metrics["prediction/mean"] == pytest.approx(SIDES.mean(), abs=0.1)


def test_metrics_can_be_added(tmp_path: Path) -> None:
    def more(labels: Any, predictions: Any) -> dict[str, Any]:
        return {"rms": tf.metrics.root_mean_squared_error(labels, predictions["predictions"][:, 0])}

    model = contrib_estimator.add_metrics(estimator.LinearRegressor(columns()[0], tmp_path), more)
    metrics = fit(model, VALUES)
    assert metrics["rms"] == pytest.approx(metrics["average_loss"] ** 0.5, rel=0.01)


def test_examples_are_parsed_for_canned_estimators() -> None:
    wide, _ = columns()
    spec = estimator.classifier_parse_example_spec(wide, "side", weight_column="weight")
    assert sorted(spec) == ["kind", "side", "weight", "x"]
    assert spec["side"] == tf.FixedLenFeature((1,), tf.int64)
    spec = estimator.regressor_parse_example_spec(wide, "value", label_dimension=2)
    assert spec["value"] == tf.FixedLenFeature((2,), tf.float32)
    with pytest.raises(ValueError, match="the label 'x' is also a feature"):
        estimator.regressor_parse_example_spec(wide, "x")
    with pytest.raises(ValueError, match="the weight 'x' is also a feature"):
        estimator.classifier_parse_example_spec(wide, "side", weight_column="x")


def test_keras_3_model_is_refused() -> None:
    import keras

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ConfigurationError, match="only a model of Keras 2 works in a graph"):
        estimator.model_to_estimator(model)


def test_wrong_settings_are_described(tmp_path: Path) -> None:
    wide, _ = columns()
    with pytest.raises(ValueError, match="there is no optimizer 'Fast'"):
        fit(estimator.LinearClassifier(wide, tmp_path, optimizer="Fast"), SIDES)
    with pytest.raises(ValueError, match="n_classes is 1"):
        estimator.LinearClassifier(wide, n_classes=1)
    with pytest.raises(ValueError, match="there are no feature columns"):
        estimator.LinearClassifier([])
    with pytest.raises(ValueError, match="there is no feature 'w' for the weights"):
        fit(estimator.LinearClassifier(wide, tmp_path / "w", weight_column="w"), SIDES)
    with pytest.raises(ConfigurationError, match=r"RunConfig\(train_distribute=...\) is a str"):
        estimator.BaselineClassifier(config=estimator.RunConfig(train_distribute="mirrored"))


@pytest.mark.parametrize(
    ("labels", "settings"),
    [
        (SIDES + 2, {}),
        (CORNERS - 1, {"n_classes": 4}),
        (np.full(600, "up"), {"label_vocabulary": ["left", "right"]}),
    ],
)
def test_label_of_no_class_is_an_error(
    tmp_path: Path, labels: Any, settings: dict[str, Any]
) -> None:
    model = estimator.LinearClassifier(columns()[0], tmp_path, **settings)
    with pytest.raises(tf.errors.InvalidArgumentError, match="a label is none of the classes"):
        fit(model, labels, steps=1)
