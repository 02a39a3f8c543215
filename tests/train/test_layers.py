"""The Embedding layer as a Keras layer; how its table is trained is in the tests of variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.errors import ConfigurationError


def make_model() -> Any:
    users = keras.Input((2,), dtype="int64")
    embedded = phalanx.layers.Embedding(50, 4, name="users")(users)
    model = keras.Model(users, keras.layers.Dense(1)(keras.layers.Flatten()(embedded)))
    model.compile("sgd", "mse")
    return model


def make_data(context: phalanx.Context) -> Any:
    x = np.arange(40).reshape(20, 2)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1].astype("float32"))).batch(20)


def test_table_cannot_be_read_inside_a_step(config: phalanx.RunConfig) -> None:
    def train_step(model: Any, batch: Any) -> Any:
        model(batch[0])
        return keras.ops.sum(model.get_layer("users").embeddings)

    experiment = phalanx.Experiment(model=make_model, train_data=make_data, train_step=train_step)
    with pytest.raises(ConfigurationError, match=r"users.embeddings is read inside a step"):
        phalanx.run(experiment, config.replace(global_batch_size=20))


def test_layer_is_saved_and_loaded_with_its_model(tmp_path: Path) -> None:
    model = make_model()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    x = np.array([[1, 49], [0, 7]])
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


def test_index_zero_is_masked_if_asked() -> None:
    indices = np.array([[0, 3]])
    masked = phalanx.layers.Embedding(5, 2, mask_zero=True)
    assert np.asarray(masked.compute_mask(indices)).tolist() == [[False, True]]
    assert phalanx.layers.Embedding(5, 2).compute_mask(indices) is None


def test_invalid_sizes_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="input_dim is 0: it must be an integer above 0"):
        phalanx.layers.Embedding(0, 4)
