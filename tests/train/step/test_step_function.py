"""Steps as pure functions: what they accept."""

from typing import Any

import keras
import pytest

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


def test_model_that_overrides_train_step_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="OwnSteps overrides train_step"):
        StepFunction(phalanx.Experiment(model=OwnSteps), phalanx.Context())


def test_train_step_of_the_experiment_comes_before_that_of_the_model() -> None:
    experiment = phalanx.Experiment(model=OwnSteps, train_step=lambda model, batch: 0.0)
    StepFunction(experiment, phalanx.Context())
