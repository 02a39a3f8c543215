"""Moving averages and accumulated gradients of rows equal those that Keras has of whole weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.train.sparse_model import make_data, make_model

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.config import RunConfig
from phalanx.train.setting_checks import check_asynchronous
from phalanx.train.step.accumulation import accumulate_parts
from phalanx.train.step.step_function import StepFunction
from phalanx.train.task_run import make_clipping
from phalanx.train.variables.device_variables import DeviceVariables

# Without momentum, rows that are not looked up do not change in Keras either.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "averages": {"use_ema": True, "ema_momentum": 0.8},
    "accumulation": {"gradient_accumulation_steps": 3},
    "both": {"use_ema": True, "ema_momentum": 0.8, "gradient_accumulation_steps": 3},
    "clipped value": {"gradient_accumulation_steps": 3, "clipvalue": 0.002},
    "clipped norm": {"gradient_accumulation_steps": 3, "clipnorm": 0.01},
    "clipped norm of all": {"gradient_accumulation_steps": 3, "global_clipnorm": 0.02},
}
CONTEXT = phalanx.Context(batch_size=8)


class Training:
    """Trains the tables of a model in so many stores, which may change between two steps."""

    def __init__(self, optimizer: Any) -> None:
        self.step = StepFunction(phalanx.Experiment(model=lambda: make_model(optimizer)), CONTEXT)
        self.step.build(make_data(CONTEXT).element_spec)
        self.host_variables = self.step.make_host_variables()
        self.place(1)

    def place(self, stores: int) -> None:
        self.variables = DeviceVariables.place(
            self.host_variables,
            ["/device:CPU:0"] * stores,
            make_clipping(self.step, RunConfig()),
        )
        self.variables.push()
        variables, compute = self.variables, accumulate_parts(self.step, 1)

        @tf.function  # type: ignore[untyped-decorator]
        def update(batch: Any) -> None:
            buffers, state = variables.read(), variables.read_state()
            variables.apply(compute(variables, buffers, state, batch, 0, 0)[0])

        self.update = update

    def finish(self) -> list[Any]:
        self.variables.finalize()
        self.variables.pull()
        return [variable.numpy() for variable in self.host_variables.trainable]


def train_with_keras(optimizer: Any) -> list[Any]:
    model = make_model(optimizer, keras.layers.Embedding)
    for x, y in make_data(CONTEXT):
        model.train_on_batch(x, y)
    optimizer.finalize_variable_values(model.trainable_variables)
    return [variable.numpy() for variable in model.trainable_variables]


def assert_equal(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_are_trained_as_keras_trains_whole_weights(name: str) -> None:
    training = Training(keras.optimizers.SGD(0.5, **OPTIMIZERS[name]))
    training.place(2)
    for batch in make_data(CONTEXT):
        training.update(batch)
    wanted = train_with_keras(keras.optimizers.SGD(0.5, **OPTIMIZERS[name]))
    assert_equal(training.finish(), wanted)


def test_averages_and_sums_move_to_other_servers_with_their_rows() -> None:
    training = Training(keras.optimizers.SGD(0.5, **OPTIMIZERS["both"]))
    # The change comes between two updates.
    for number, batch in enumerate(make_data(CONTEXT)):
        if number == 4:
            training.variables.pull()
            training.place(3)
        training.update(batch)
    wanted = train_with_keras(keras.optimizers.SGD(0.5, **OPTIMIZERS["both"]))
    assert_equal(training.finish(), wanted)


class StopAt4(phalanx.hooks.Hook):
    def due(self, step: int) -> int | None:
        return 4 if step < 4 else None

    def after_step(self, session: Any) -> None:
        if session.step == 4:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("name", ["averages", "accumulation"])
def test_run_continues_with_averages_and_sums_of_its_checkpoint(name: str, tmp_path: Path) -> None:
    def train(folder: str, *hooks: Any) -> Any:
        config = phalanx.RunConfig(
            model_dir=str(tmp_path / folder), train_steps=8, global_batch_size=8, save_steps=4
        )
        experiment = phalanx.Experiment(
            model=lambda: make_model(keras.optimizers.Adam(0.05, **OPTIMIZERS[name])),
            train_data=make_data,
        )
        return phalanx.run(experiment, config, hooks=hooks).model.get_weights()

    with pytest.raises(KeyboardInterrupt):
        train("interrupted", StopAt4())
    assert_equal(train("interrupted"), train("whole"))


def test_weights_are_not_overwritten_in_the_middle_if_rows_have_averages() -> None:
    settings = {"use_ema": True, "ema_overwrite_frequency": 2}
    with pytest.raises(ConfigurationError, match=r"ema_overwrite_frequency .* is a sparse table"):
        Training(keras.optimizers.SGD(0.5, **settings))


def test_callback_that_swaps_whole_weights_is_refused(config: phalanx.RunConfig) -> None:
    experiment = phalanx.Experiment(
        model=lambda: make_model(keras.optimizers.SGD(0.5, use_ema=True)), train_data=make_data
    )
    with pytest.raises(ConfigurationError, match="users/embeddings is a sparse table"):
        phalanx.run(experiment, config, callbacks=[keras.callbacks.SwapEMAWeights(True)])


def test_asynchronous_trainers_refuse_limits_of_means() -> None:
    training = Training(keras.optimizers.SGD(0.5, **OPTIMIZERS["clipped norm"]))
    clipping = make_clipping(training.step, RunConfig())
    with pytest.raises(ConfigurationError, match="asynchronous trainers do not know the mean"):
        check_asynchronous(training.step, clipping)
