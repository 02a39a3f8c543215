"""Steps as pure functions: what they accept."""

from typing import Any

import keras
import pytest
import tensorflow as tf

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.step.step_function import StepFunction


class OwnSteps(keras.Model):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.compile("sgd", "mse")

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def train_step(self, data: Any) -> Any:
        return {}


@pytest.mark.parametrize("name", ["loss", "optimizer", "metrics"])
def test_what_the_train_step_of_the_model_does_not_use_is_rejected(name: str) -> None:
    written: dict[str, Any] = {"loss": "mse", "optimizer": "sgd", "metrics": ["mae"]}
    experiment = phalanx.Experiment(model=OwnSteps, **{name: written[name]})
    with pytest.raises(ConfigurationError, match=f"overrides train_step, .* not use {name} of"):
        StepFunction(experiment, phalanx.Context())


def test_train_step_of_the_experiment_comes_before_that_of_the_model() -> None:
    experiment = phalanx.Experiment(model=OwnSteps, train_step=lambda model, batch: 0.0)
    StepFunction(experiment, phalanx.Context())


@pytest.mark.parametrize("name", ["train", "train_in_place", "evaluate"])
def test_autograph_converts_the_functions_that_call_the_users_steps(name: str) -> None:
    """Otherwise an `if` on a tensor in a step of the user would fail."""
    assert callable(tf.autograph.to_graph(getattr(StepFunction, name)))
