"""Serving signatures of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.export.saved_model import export
from phalanx.train.export.signatures import load_signatures, make_servable, trace_signatures
from phalanx.train.model_dir.checkpoint_loader import TrainedModel


class ImageExperiment(phalanx.Experiment):
    """Its model has two inputs, an encoded image and a size, and two outputs."""

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


def test_serving_examples_applies_the_experiments_preprocessing(tmp_path: Path) -> None:
    experiment = ImageExperiment()
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


def test_traced_signatures_take_tensors_by_name_in_any_order() -> None:
    experiment = ImageExperiment()
    traced = trace_signatures(make_servable(experiment, experiment.model()))["serving_default"]
    assert list(traced.inputs) == ["image", "size"]
    found = traced.call(size=tf.constant([3], tf.int32), image=tf.ones([1, 4, 4, 1]))
    assert found["twice"].numpy().tolist() == [6]


def test_a_directory_without_a_saved_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a SavedModel"):
        load_signatures(str(tmp_path))
