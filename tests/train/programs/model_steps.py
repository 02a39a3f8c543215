"""Trains models with a `train_step` of their own, and writes their variables and histories."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import phalanx  # isort: skip
import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.parity import custom_steps
from tests.parity.table import FEATURES, TARGETS

EPOCHS = 2


def make_model(name: str) -> Any:
    keras.utils.set_random_seed(7)
    if name == "gan":
        return custom_steps.wasserstein()
    # A replica would normalize by its own batch.
    model = custom_steps.VAE(normalizes=False)
    model.compile(keras.optimizers.Adam(0.01))
    return model


def make_data(examples: int) -> tf.data.Dataset:
    """The last batch of 49 examples is a single one."""
    return tf.data.Dataset.from_tensor_slices((FEATURES[:examples], TARGETS[:examples])).batch(16)


def read_variables(model: Any) -> list[Any]:
    """The variables of a model and of its optimizers."""
    names = ("optimizer", "d_optimizer", "g_optimizer")
    optimizers = [getattr(model, name, None) for name in names]
    variables = [v for optimizer in optimizers if optimizer for v in optimizer.variables]
    return [np.asarray(v.numpy()).tolist() for v in (*model.variables, *variables)]


class HalveRate(keras.callbacks.Callback):  # type: ignore[misc]
    """Changes the learning rate of an optimizer that is not the first."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if hasattr(self.model, "g_optimizer"):
            self.model.g_optimizer.learning_rate = 0.05 / (epoch + 2)


def main() -> None:
    parser = argparse.ArgumentParser()
    phalanx.RunConfig.add_flags(parser)
    parser.add_argument("--models", nargs="+", default=["vae", "gan"])
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--devices-there", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.devices_there > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * arguments.devices_there
        tf.config.set_logical_device_configuration(cpu, logical)
    config = phalanx.RunConfig.from_flags(arguments)
    for name in arguments.models:
        model, data = make_model(name), make_data(arguments.examples)
        history = phalanx.fit(
            model, data, validation_data=data, epochs=EPOCHS, callbacks=[HalveRate()], verbose=0,
            config=config, exit_other_tasks=name == arguments.models[-1],
        )  # fmt: skip
        if history is not None:
            result = {"history": history.history, "variables": read_variables(model)}
            print(f"RESULT {name} {json.dumps(result)}", flush=True)


if __name__ == "__main__":
    main()
