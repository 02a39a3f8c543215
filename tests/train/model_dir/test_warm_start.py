"""Warm start from checkpoints of every format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.train.small_experiment import Line

import phalanx
from phalanx import hooks
from phalanx.errors import ConfigurationError
from phalanx.train.model_dir.warm_start import warm_start

Variables = dict[str, Any]


@pytest.fixture
def config(tmp_path: Path) -> phalanx.RunConfig:
    return phalanx.RunConfig(model_dir=str(tmp_path / "run"), train_steps=6, global_batch_size=16)


def make_model(hidden: int = 3) -> Any:
    return Line(hidden).model(phalanx.Context())


def variables(model: Any) -> Variables:
    return {v.path.removeprefix(f"{model.name}/"): v for v in model.variables}


def values(model: Any) -> Variables:
    return {name: variable.numpy() for name, variable in variables(model).items()}


def load(
    path: object, prefix: str = "", names: Mapping[str, str] | None = None, hidden: int = 3
) -> Variables:
    """Return the weights of a new model after a warm start."""
    model = make_model(hidden)
    warm_start(variables(model), model, str(path), prefix, names)
    return values(model)


def save(model: Any, path: Path, suffix: str) -> str:
    if suffix == ".ckpt":
        parts = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        return str(parts.save(str(path / "model.ckpt")))
    target = str(path / f"old{suffix}")
    if suffix == ".keras":
        model.save(target)
    else:
        model.save_weights(target)
    return target


@pytest.mark.parametrize("suffix", [".ckpt", ".keras", ".weights.h5"])
def test_load_all_or_by_prefix_from_every_format(tmp_path: Path, suffix: str) -> None:
    model = make_model()
    old = values(model)
    path = save(model, tmp_path, suffix)
    for name, value in load(path).items():
        np.testing.assert_array_equal(value, old[name])
    only = load(path, prefix="encoder/")
    np.testing.assert_array_equal(only["encoder/kernel"], old["encoder/kernel"])
    assert not np.array_equal(only["head/kernel"], old["head/kernel"])


def test_a_run_starts_with_the_weights_of_another_and_resumes_with_its_own(
    config: phalanx.RunConfig, tmp_path: Path
) -> None:
    class Grab(hooks.Hook):
        def begin(self, session: Any) -> None:
            session.pull()
            self.weights = {name: value.numpy() for name, value in session.variables.items()}

    old = phalanx.run(Line(), phalanx.RunConfig(model_dir=str(tmp_path / "old"), train_steps=3))
    grab = Grab()
    load = hooks.LoadCheckpoint(old.model_dir)
    first = phalanx.run(Line(), config.replace(train_steps=1), hooks=[load, grab])
    for name, value in values(old.model).items():
        np.testing.assert_array_equal(grab.weights[name], value)
    phalanx.run(Line(), config, hooks=[load, grab])
    for name, value in values(first.model).items():
        np.testing.assert_array_equal(grab.weights[name], value)


def save_tf1_graph(directory: Path) -> tuple[str, Any]:
    """What a TensorFlow 1 program leaves behind."""
    v1 = tf.compat.v1
    with tf.Graph().as_default(), v1.Session() as session:
        with v1.variable_scope("layer1"):
            weights = v1.get_variable("weights", [4, 3])
            v1.get_variable("biases", [3], initializer=v1.ones_initializer())
        session.run(v1.global_variables_initializer())
        path = v1.train.Saver().save(session, str(directory / "tf1.ckpt"), global_step=7)
        return path, session.run(weights)


def test_load_a_tf1_checkpoint_with_a_name_map(tmp_path: Path) -> None:
    path, kernel = save_tf1_graph(tmp_path)
    new = load(path, names={"encoder/kernel": "layer1/weights", "encoder/bias": "layer1/biases"})
    np.testing.assert_array_equal(new["encoder/kernel"], kernel)
    np.testing.assert_array_equal(new["encoder/bias"], np.ones(3))


@pytest.mark.parametrize("suffix", [".ckpt", ".keras"])
def test_names_that_end_with_a_slash_map_a_prefix(tmp_path: Path, suffix: str) -> None:
    trunk = keras.layers.Dense(3, name="trunk")
    model = keras.Sequential([keras.Input((4,)), trunk, keras.layers.Dense(9)])
    model.compile("sgd", "mse")
    new = load(save(model, tmp_path, suffix), names={"encoder/": "trunk/"})
    np.testing.assert_array_equal(new["encoder/kernel"], trunk.kernel.numpy())


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    old = save(make_model(), tmp_path, ".ckpt")
    with pytest.raises(ConfigurationError) as caught:
        load(old, hidden=5)
    assert "encoder/kernel has the shape [4, 5], but encoder/kernel is [4, 3]" in str(caught.value)
    assert "head/kernel has the shape [5, 1]" in str(caught.value)
    with pytest.raises(ConfigurationError, match="does not fit the model"):
        load(save(make_model(), tmp_path, ".keras"), hidden=5)
    path, _ = save_tf1_graph(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"head/bias \[1\] is not in the file as head/bias"
    ):
        load(path)
    with pytest.raises(ConfigurationError, match="the model has no weight hat/bias"):
        load(path, names={"hat/bias": "layer1/biases"})
    with pytest.raises(ConfigurationError, match="prefix='tail/' and names=None choose none"):
        load(path, prefix="tail/")
    for missing in ("nothing", "nothing.keras"):
        with pytest.raises(ConfigurationError, match="there is no"):
            load(tmp_path / missing)


def test_weights_of_a_tf_module_are_found_by_their_attributes(tmp_path: Path) -> None:
    class Scale(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = {"factor": tf.Variable([2.0])}

    path = tf.train.Checkpoint(model=Scale()).save(str(tmp_path / "module"))
    mine = keras.Variable([0.0], name="inner_factor")
    assert warm_start({"inner/factor": mine}, None, path) == ["inner/factor"]
    assert mine.numpy().tolist() == [2.0]
