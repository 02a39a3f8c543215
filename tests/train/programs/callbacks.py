"""Callbacks that change what is trained, for the tests with real processes."""

import argparse
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from toy import Toy  # type: ignore[import-not-found]

import phalanx
from phalanx.train.loop.session import Session


class Change(keras.callbacks.Callback):  # type: ignore[misc]
    """Changes weights, the optimizer and the learning rate, inside and at the end of an epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[int] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append(batch)
        if batch == 1:
            kernel = self.model.layers[0].kernel
            kernel.assign(kernel * 0.9)
            self.model.optimizer.learning_rate = 0.02

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.set_weights([weight * 0.95 for weight in self.model.get_weights()])
        for variable in self.model.optimizer.variables:
            if "velocity" in variable.path:
                variable.assign(variable * 0.5)


class CheckPushed(phalanx.hooks.Hook):
    """Checks that what the callbacks left in the model is what is trained."""

    def before_step(self, session: Session) -> None:
        if session.position.batches == 0:
            left = [np.array(weight) for weight in session.model.get_weights()]
            session.pull()
            for before, after in zip(left, session.model.get_weights(), strict=True):
                np.testing.assert_array_equal(before, after)
            print("PUSHED", flush=True)


class Broken(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        raise KeyError("my mistake")


def main() -> None:
    parser = argparse.ArgumentParser()
    phalanx.RunConfig.add_flags(parser)
    parser.add_argument("--broken", action="store_true")
    parser.add_argument("--devices-there", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.devices_there > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        logical = [tf.config.LogicalDeviceConfiguration()] * arguments.devices_there
        tf.config.set_logical_device_configuration(cpu, logical)
    config = phalanx.RunConfig.from_flags(arguments, seed=1)
    folder = Path(str(config.model_dir))
    change = Change()
    stop = keras.callbacks.EarlyStopping(
        "val_loss", mode="max", patience=2, restore_best_weights=True
    )
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.7),
        keras.callbacks.SwapEMAWeights(),
        change,
        keras.callbacks.ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True),
        stop,
    ]
    if arguments.broken:
        callbacks = [Broken()]
    result = phalanx.run(Toy(use_ema=True), config, hooks=[CheckPushed()], callbacks=callbacks)
    if result.history is None:
        return
    optimizer = result.model.optimizer
    np.savez(folder / "final.npz", *result.model.get_weights(), optimizer.learning_rate.numpy())
    summary = {
        "epochs": result.history.epoch,
        "history": result.history.history,
        "batches": change.batches,
        "best": stop.best_epoch + 1,
        "step": result.step,
        "iterations": int(optimizer.iterations.numpy()),
    }
    (folder / "summary.json").write_text(json.dumps(summary))


if __name__ == "__main__":
    main()
