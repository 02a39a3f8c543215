"""Trains a model twice: without a break, and with a chief that is killed in the second epoch.

    python keras_resume.py DIRECTORY KIND [FLAGS]

The chief kills itself once, in the second `fit`. When the program is started again, the first run
is complete, and the second one continues. KIND is the kind of data, or `evaluator`: then there is
only the first run.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import phalanx  # isort: skip

import keras
import numpy as np
import tensorflow as tf
from keras import layers

X = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def make_model() -> Any:
    # The program sets no seed, so that Phalanx chooses the order of the data.
    initializer = keras.initializers.GlorotUniform(seed=1)
    model = keras.Sequential(
        [
            layers.Dense(8, activation="relu", kernel_initializer=initializer),
            layers.BatchNormalization(),
            layers.Dropout(0.2, seed=2),
            layers.Dense(1, kernel_initializer=initializer),
        ]
    )
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    return model


def make_data(kind: str) -> Any:
    data = tf.data.Dataset.from_tensor_slices((X, Y))
    if kind == "python":
        data = data.map(
            lambda x, y: (tf.ensure_shape(tf.numpy_function(np.copy, [x], "float32"), [4]), y)
        )
    return data.shuffle(60).batch(8)


class KillOnce(keras.callbacks.Callback):  # type: ignore[misc]
    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker = marker
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.epoch == 1 and batch == 5 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, name: str, kind: str, callbacks: list[Any]) -> Any:
    config = phalanx.RunConfig.parse_known().replace(seed=1, save_steps=3)
    data = {"x": X, "y": Y, "batch_size": 8} if kind == "arrays" else {"x": make_data(kind)}
    model = make_model()
    history = phalanx.fit(
        model, **data, epochs=3, validation_data=(X, Y), callbacks=callbacks, verbose=0,
        model_dir=str(folder / name), config=config,
    )  # fmt: skip
    return model, history


if __name__ == "__main__":
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    whole, history = train(folder, "whole", kind, [])
    found: dict[str, Any] = {"validation": np.array(history.history.get("val_loss", []))}
    if kind != "evaluator":
        killed, _ = train(folder, "killed", kind, [KillOnce(folder / "was-killed")])
        for number, variable in enumerate(killed.variables):
            found[f"killed {number}"] = variable.numpy()
    if phalanx.detect().is_chief():
        for number, variable in enumerate(whole.variables):
            found[f"whole {number}"] = variable.numpy()
        np.savez(folder / "found.npz", **found)
