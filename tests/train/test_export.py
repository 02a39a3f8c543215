"""What leaves a run: versioned SavedModels with two signatures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.train.small_experiment import Line, make_points

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.export.saved_model import export, versions
from phalanx.train.export.signatures import load_signatures
from phalanx.train.model_dir.checkpoint_loader import TrainedModel, choose_checkpoint, load_trained


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = phalanx.RunConfig(
        model_dir=str(tmp_path_factory.mktemp("run")), train_steps=40, save_steps=20,
        global_batch_size=16, eval_every_steps=20,
    )  # fmt: skip
    return phalanx.run(Line(), config)


def example(**features: list[float]) -> bytes:
    return bytes(
        tf.train.Example(
            features=tf.train.Features(
                feature={
                    name: tf.train.Feature(float_list=tf.train.FloatList(value=values))
                    for name, values in features.items()
                }
            )
        ).SerializeToString()
    )


def test_raw_tensors_and_examples_get_the_models_own_predictions(run: Any, tmp_path: Path) -> None:
    config = phalanx.RunConfig(model_dir=run.model_dir)
    path, evaluation = choose_checkpoint(run.model_dir)
    trained = load_trained(Line(), config, path)
    target = export(Line(), trained, str(tmp_path / "models"))
    assert target.endswith("models/1")
    signatures = load_signatures(target)
    x = make_points(5)[0]
    expected = run.model(x).numpy()
    raw = signatures["serving_default"].call(x=tf.constant(x))["predictions"]
    np.testing.assert_allclose(raw, expected, rtol=1e-5)
    examples = tf.constant([example(x=row.tolist()) for row in x])
    parsed = signatures["serving_examples"].call(examples=examples)["predictions"]
    np.testing.assert_allclose(parsed, expected, rtol=1e-5)
    about = json.loads(Path(target, "assets.extra/phalanx.json").read_text())
    assert about["step"] == evaluation.step == 40


def test_versions_count_up_and_none_is_overwritten(run: Any, tmp_path: Path) -> None:
    trained = TrainedModel(run.model, 1, "")
    assert [export(Line(), trained, str(tmp_path), v)[-1] for v in (None, 5, None)] == list("156")
    with pytest.raises(ConfigurationError, match="version 5 already"):
        export(Line(), trained, str(tmp_path), 5)
    assert versions(str(tmp_path)) == [1, 5, 6]
    assert not list(tmp_path.glob(".unfinished*"))


def test_the_best_the_last_and_any_other_checkpoint(run: Any, tmp_path: Path) -> None:
    assert choose_checkpoint(run.model_dir)[0].endswith("-40")
    assert choose_checkpoint(run.model_dir, "best", "loss", "max")[0].endswith("-20")
    assert choose_checkpoint(run.model_dir, "best", "mae")[0].endswith("-40")
    assert choose_checkpoint(run.model_dir, "model.ckpt-0")[0].endswith("-0")
    with pytest.raises(ConfigurationError, match="there are steps 0, 20, 40"):
        choose_checkpoint(run.model_dir, "model.ckpt-7")
    with pytest.raises(ConfigurationError, match="there are loss, mae"):
        choose_checkpoint(run.model_dir, "best", "f1")
    with pytest.raises(ConfigurationError, match="has the run saved yet"):
        choose_checkpoint(str(tmp_path))


def test_another_models_checkpoint_is_refused(run: Any) -> None:
    config = phalanx.RunConfig(model_dir=run.model_dir)
    with pytest.raises(ConfigurationError, match="checkpoint of another model"):
        load_trained(Line(hidden=7), config, run.checkpoint)


class Pictures(phalanx.Experiment):
    """Takes encoded pictures and their size; two inputs, two outputs."""

    def model(self, context: Any = None) -> Any:
        image = keras.Input((4, 4, 1), name="image")
        size = keras.Input((), dtype="int32", name="size")
        mean = keras.layers.GlobalAveragePooling2D()(image)
        outputs = {"mean": mean, "twice": size * 2}
        return keras.Model({"image": image, "size": size}, outputs)

    def example_features(self) -> Mapping[str, Any]:
        return {"png": tf.io.FixedLenFeature([], tf.string)}

    def preprocess(self, features: Any) -> Any:
        decode = lambda png: tf.io.decode_png(png, channels=1)  # noqa: E731
        image = tf.map_fn(decode, features["png"], fn_output_signature=tf.uint8)
        image = tf.cast(tf.ensure_shape(image, [None, 4, 4, 1]), tf.float32) / 255
        return {"image": image, "size": tf.zeros([tf.shape(image)[0]], tf.int32) + 4}


def test_the_experiments_preprocessing_is_exported_with_it(tmp_path: Path) -> None:
    experiment = Pictures()
    path = export(experiment, TrainedModel(experiment.model(), 0, ""), str(tmp_path))
    signatures = load_signatures(path)
    png = tf.io.encode_png(tf.fill([4, 4, 1], tf.constant(51, tf.uint8))).numpy()
    features = tf.train.Features(
        feature={"png": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png]))}
    )
    given = tf.train.Example(features=features).SerializeToString()
    found = signatures["serving_examples"].call(examples=tf.constant([given, given]))
    np.testing.assert_allclose(found["mean"], [[0.2], [0.2]], rtol=1e-5)
    assert found["twice"].numpy().tolist() == [8, 8]
    raw = signatures["serving_default"].call(
        image=tf.ones([1, 4, 4, 1]), size=tf.constant([3], tf.int32)
    )
    assert raw["twice"].numpy().tolist() == [6]


class Plain(phalanx.Experiment):
    """No Keras model: a module that does not say what it takes."""

    def model(self, context: Any = None) -> Any:
        class Scale(tf.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.factor = tf.Variable([2.0])

            def __call__(self, x: Any) -> Any:
                return x * self.factor

        return Scale()

    def loss(self, y_true: Any, y_pred: Any) -> Any:
        return tf.reduce_mean(tf.square(y_true - y_pred), axis=-1)

    def optimizer(self, context: Any) -> Any:
        return keras.optimizers.SGD(0.1)

    def train_data(self, context: phalanx.Context) -> Any:
        x = np.ones((8, 1), "float32")
        return tf.data.Dataset.from_tensor_slices((x, 3 * x)).batch(context.batch_size)


def test_a_plain_module_is_exported_too(tmp_path: Path) -> None:
    config = phalanx.RunConfig(model_dir=str(tmp_path / "run"), train_steps=3, global_batch_size=4)
    result = phalanx.run(Plain(), config)
    trained = load_trained(Plain(), config, result.checkpoint)
    signatures = load_signatures(export(Plain(), trained, str(tmp_path / "models")))
    found = signatures["serving_default"].call(inputs=tf.constant([[1.0]]))["predictions"]
    np.testing.assert_allclose(found, result.model(tf.constant([[1.0]])), rtol=1e-5)
