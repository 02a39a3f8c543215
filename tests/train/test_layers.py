"""The Embedding layer; its training is tested with the sparse tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.train.sparse_model import make_data, make_model

import phalanx
from phalanx.errors import ConfigurationError


def test_embeddings_cannot_be_read_inside_a_step(tmp_path: Path) -> None:
    def train_step(model: Any, batch: Any) -> Any:
        model(batch[0])
        return keras.ops.sum(model.get_layer("users").embeddings)

    with pytest.raises(ConfigurationError, match=r"users.embeddings is read inside a step"):
        phalanx.run(
            phalanx.Experiment(
                model=lambda: make_model("sgd"), train_data=make_data, train_step=train_step
            ),
            phalanx.RunConfig(model_dir=str(tmp_path), train_steps=2, global_batch_size=20),
        )


def test_embedding_is_saved_and_loaded_with_its_model(tmp_path: Path) -> None:
    model = make_model("sgd")
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    x = [np.array([1, 49]), np.array([0, 7])]
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))


def test_invalid_sizes_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="input_dim is 0: it must be a number above 0"):
        phalanx.layers.Embedding(0, 4)
