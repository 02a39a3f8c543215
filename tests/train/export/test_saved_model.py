"""Export of SavedModels in numbered versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.train.small_experiment import Line, make_points

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.export.saved_model import export, find_version, list_versions
from phalanx.train.export.signatures import load_signatures
from phalanx.train.model_dir.checkpoint_loader import TrainedModel, load_trained
from phalanx.train.model_dir.layout import (
    choose_checkpoints,
)


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


def test_both_signatures_return_the_models_predictions(run: Any, tmp_path: Path) -> None:
    config = phalanx.RunConfig(model_dir=run.model_dir)
    path, evaluation = next(iter(choose_checkpoints(run.model_dir).items()))
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


def test_export_writes_the_next_version_and_never_overwrites_one(run: Any, tmp_path: Path) -> None:
    trained = TrainedModel(run.model, 1, "")
    assert [export(Line(), trained, str(tmp_path), v)[-1] for v in (None, 5, None)] == list("156")
    with pytest.raises(ConfigurationError, match="already has a version 5"):
        export(Line(), trained, str(tmp_path), 5)
    assert list_versions(str(tmp_path)) == [1, 5, 6]
    assert not list(tmp_path.glob(".unfinished*"))


class ModuleExperiment(phalanx.Experiment):
    """Its model is a tf.Module, which does not know its inputs."""

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


def test_export_of_a_tf_module(tmp_path: Path) -> None:
    config = phalanx.RunConfig(model_dir=str(tmp_path / "run"), train_steps=3, global_batch_size=4)
    result = phalanx.run(ModuleExperiment(), config)
    trained = load_trained(ModuleExperiment(), config, result.checkpoint)
    signatures = load_signatures(export(ModuleExperiment(), trained, str(tmp_path / "models")))
    found = signatures["serving_default"].call(inputs=tf.constant([[1.0]]))["predictions"]
    np.testing.assert_allclose(found, result.model(tf.constant([[1.0]])), rtol=1e-5)


def test_find_version_returns_the_highest_or_the_given_one(tmp_path: Path) -> None:
    for version in (2, 10):
        (tmp_path / str(version)).mkdir()
        (tmp_path / str(version) / "saved_model.pb").touch()
    assert find_version(str(tmp_path)) == (f"{tmp_path}/10", 10)
    assert find_version(str(tmp_path), 2) == (f"{tmp_path}/2", 2)
    assert find_version(f"{tmp_path}/2") == (f"{tmp_path}/2", 2)
    with pytest.raises(ConfigurationError, match=r"no SavedModel of version 3 in .*: it has 2, 10"):
        find_version(str(tmp_path), 3)
