from __future__ import annotations

import logging
from pathlib import Path

import pytest

keras = pytest.importorskip("keras", reason="needs phalanx[cpu]")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from phalanx.errors import ConfigurationError  # noqa: E402
from phalanx.models.resnet import resnet  # noqa: E402

IMAGES = np.random.default_rng(0).normal(size=(4, 32, 32, 3)).astype(np.float32)


# Counted by hand from the paper: convolutions and their normalization, and the last layer.
@pytest.mark.parametrize(
    ("layers", "weights"), [(20, 269_722), (32, 464_154), (44, 658_586), (56, 853_018)]
)
def test_number_of_weights_equals_the_paper(layers: int, weights: int) -> None:
    model = resnet(layers)
    assert sum(int(np.prod(v.shape)) for v in model.trainable_variables) == weights
    convolutions = [each for each in model.layers if isinstance(each, keras.layers.Conv2D)]
    assert len(convolutions) + 1 == layers


@pytest.mark.parametrize("options", [{}, {"version": 2}, {"num_layers": 29, "bottleneck": True}])
def test_every_variant_returns_logits(options: dict[str, int]) -> None:
    model = resnet(**{"num_layers": 20, "classes": 7, **options})  # type: ignore[arg-type]
    assert model(IMAGES, training=True).shape == (4, 7)


@pytest.mark.parametrize("layers", [0, 2, 21, 45, -4])
def test_invalid_number_of_layers_is_rejected(layers: int) -> None:
    with pytest.raises(
        ConfigurationError, match=rf"num_layers is {layers}: it must be 6n\+2, as in 20, 32, 44"
    ):
        resnet(layers)


def test_log_shapes_logs_every_unit(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "phalanx"):
        resnet(20, log_shapes=True)
    assert len(caplog.messages) == 9
    assert caplog.messages[3] == "image after unit stage2_unit1: (None, 16, 16, 32)"


def test_weight_decay_is_half_the_squared_weights() -> None:
    model = resnet(20, weight_decay=0.1)
    kernels = [v for v in model.trainable_variables if v.name == "kernel"]
    expected = 0.05 * sum(float(tf.reduce_sum(v.value**2)) for v in kernels)
    assert float(sum(model.losses)) == pytest.approx(expected, rel=1e-5)
    assert resnet(20, weight_decay=0).losses == []


def test_saved_model_can_be_loaded(tmp_path: Path) -> None:
    model = resnet(20)
    model.save(tmp_path / "model.keras")
    back = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(model(IMAGES), back(IMAGES))


def test_training_lowers_the_loss_and_updates_the_statistics() -> None:
    keras.utils.set_random_seed(1)
    model = resnet(20)
    before = np.copy(model.get_layer("stem_norm").moving_mean)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss)
    labels = np.array([1, 2, 3, 4])
    first = model.train_on_batch(IMAGES, labels)
    for _ in range(5):
        last = model.train_on_batch(IMAGES, labels)
    assert last < first
    assert not np.allclose(before, model.get_layer("stem_norm").moving_mean)
