"""Trains tables with every combiner, once with each optimizer, in the processes of one cluster."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import phalanx  # isort: skip

import keras
import numpy as np

ROWS, WIDTH, SIZE, BATCH, EPOCHS = 41, 3, 120, 24, 10  # 50 steps.
COMBINERS = ("sum", "mean", "sqrtn")
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.3),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.02),
    "adamw": lambda: keras.optimizers.AdamW(0.02, weight_decay=0.1),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1, l1_regularization_strength=1e-4),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.02, momentum=0.5, centered=True),
    "adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "lion": lambda: keras.optimizers.Lion(0.01),
}


def make_model(optimizer: Any) -> Any:
    keras.utils.set_random_seed(7)
    indices = keras.Input((4,), dtype="int64")
    weights = keras.Input((4,))
    vectors = [
        phalanx.layers.Embedding(
            ROWS, WIDTH, keras.initializers.RandomUniform(seed=number), mask_zero=True,
            combiner=combiner, name=combiner,
        )(indices, weights)
        for number, combiner in enumerate(COMBINERS)
    ]  # fmt: skip
    score = keras.layers.Dense(1)(keras.layers.Concatenate()(vectors))
    model = keras.Model([indices, weights], score)
    model.compile(optimizer, "mse")
    return model


def make_arrays() -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    # Low indices are frequent, as they are in a vocabulary that is sorted by frequency.
    indices = (ROWS * random.uniform(size=(SIZE, 4)) ** 2).astype("int64")
    weights = random.uniform(0.5, 2, (SIZE, 4)).astype("float32")
    return [indices, weights], np.sin(indices).sum(axis=1, keepdims=True).astype("float32")


def main(folder: Path) -> None:
    x, y = make_arrays()
    found: dict[str, Any] = {}
    for name, make_optimizer in OPTIMIZERS.items():
        model = make_model(make_optimizer())
        history = phalanx.fit(
            model, x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0
        )
        for variable in [*model.variables, *model.optimizer.variables]:
            found[f"{name} {variable.path}"] = variable.numpy()
        found[f"loss {name}"] = np.array(history.history["loss"])
    np.savez(folder / "found.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
