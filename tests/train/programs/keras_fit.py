"""A Keras program with every kind of data, trained by Keras or by Phalanx.

The loss is the mean of the prediction of a linear model. Its gradient does not depend on the
weights, so the order of updates does not matter: all modes must find the same weights, if each
example is read once in each epoch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import phalanx  # isort: skip

import keras
import numpy as np
import tensorflow as tf

SIZE = 48
X = np.random.default_rng(0).normal(size=(SIZE, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def mean_prediction(y_true: Any, y_pred: Any) -> Any:
    return y_pred[:, 0]


def make_model() -> Any:
    keras.utils.set_random_seed(1)
    # Without an Input, the model has no weights before it is trained.
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), mean_prediction, metrics=["mae"])
    return model


def make_nested_model() -> Any:
    keras.utils.set_random_seed(2)
    inputs = keras.Input((3,), name="x")
    outputs = {
        "sum": keras.layers.Dense(2)(inputs),
        "pair": [keras.layers.Dense(1)(inputs), keras.layers.Dense(3)(inputs)],
    }
    return keras.Model(inputs, outputs)


class Batches(keras.utils.PyDataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return SIZE // 8

    def __getitem__(self, index: int) -> Any:
        return X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]


def generate() -> Iterator[Any]:
    while True:
        for begin in range(0, SIZE, 8):
            yield X[begin : begin + 8], Y[begin : begin + 8]


def make_python_data() -> Any:
    """Return data that cannot be sent to workers, and has another order in each epoch."""

    def negate_twice(x: Any, y: Any) -> Any:
        negated = tf.numpy_function(np.negative, [x], tf.float32)
        return -tf.ensure_shape(negated, x.shape), y

    return tf.data.Dataset.from_tensor_slices((X, Y)).map(negate_twice).shuffle(SIZE).batch(8)


def write_files(folder: Path, count: int) -> list[str]:
    paths = []
    for number, rows in enumerate(np.split(np.arange(SIZE), count)):
        path = folder / f"{number}-of-{count}.tfrecord"
        # Every task writes the same files.
        temporary = path.with_suffix(f".{os.getpid()}")
        with tf.io.TFRecordWriter(str(temporary)) as writer:
            for row in rows:
                writer.write(tf.io.serialize_tensor(np.append(X[row], Y[row])).numpy())
        temporary.rename(path)
        paths.append(str(path))
    return paths


def read_files(paths: list[str]) -> Any:
    def parse(record: Any) -> Any:
        row = tf.ensure_shape(tf.io.parse_tensor(record, tf.float32), [4])
        return row[:3], row[3:]

    return tf.data.TFRecordDataset(paths).map(parse).shuffle(100).batch(8)


def make_pipeline() -> Any:
    from phalanx.data import Pipeline

    pipeline = Pipeline.from_arrays({"x": X, "y": Y}, seed=3)
    return pipeline.map(lambda batch: (batch["x"], batch["y"]))


Call = Callable[..., Any]


def run(fit: Call, evaluate: Call, predict: Call, folder: Path, pipelines: bool) -> dict[str, Any]:
    """Call everything, and return what each call has changed or returned."""
    found: dict[str, Any] = {}
    options = {"epochs": 2, "verbose": 0}

    def train(name: str, *data: Any, **more: Any) -> Any:
        model = make_model()
        history = fit(model, *data, **options, **more)
        assert history.epoch == [0, 1], history.epoch
        found[name] = np.concatenate([weights.ravel() for weights in model.get_weights()])
        # Keras counts an update too many in each epoch of unknown length.
        if name != "several files":
            found[f"updates with {name}"] = int(model.optimizer.iterations)
        return history

    # The last batch is smaller, so that its examples count more: a shuffle would matter.
    train("arrays", X, Y, batch_size=7, shuffle=False)
    train("shuffled arrays", X, Y, batch_size=12)
    train("several files", read_files(write_files(folder, 6)))
    data = read_files(write_files(folder, 1))
    data = data.apply(tf.data.experimental.assert_cardinality(SIZE // 8))
    history = train("one file", data, validation_data=(X, Y))
    found["validation"] = np.array(history.history["val_loss"])
    train("generator", generate(), steps_per_epoch=6)
    train("PyDataset", Batches())
    train("shuffled data of Python", make_python_data())
    if pipelines:
        train("pipeline", make_pipeline(), batch_size=8)
    else:
        train("pipeline", X, Y, batch_size=8)
    model = make_model()
    found["evaluate arrays"] = np.array(evaluate(model, X, Y, batch_size=7, verbose=0))
    found["evaluate PyDataset"] = np.array(evaluate(model, Batches(), verbose=0))
    steps = {"steps": 4, "verbose": 0}
    found["evaluate generator"] = np.array(evaluate(model, generate(), **steps))
    model = make_model()
    found["predict arrays"] = predict(model, X, batch_size=7, verbose=0)
    found["predict PyDataset"] = predict(model, Batches(), verbose=0)
    nested = make_nested_model()
    dataset = tf.data.Dataset.from_tensor_slices(X).filter(lambda row: row[0] > 0).batch(5)
    predictions = predict(nested, dataset, verbose=0)
    found["predict sum"], found["predict pair"] = predictions["sum"], predictions["pair"][1]
    found["predict some"] = predict(nested, dataset, steps=3, verbose=0)["sum"]
    # A model that is trained again continues where it was.
    model = make_model()
    for _ in range(2):
        fit(model, X, Y, shuffle=False, verbose=0)
    found["trained twice"] = model.get_weights()[0]
    found["predict again"] = predict(model, X, verbose=0)
    # A model that is compiled again has another optimizer, here one with fewer variables.
    model = make_model()
    negligible = keras.optimizers.SGD(0.1, momentum=1e-12)
    for optimizer in (negligible, keras.optimizers.SGD(0.05)):
        model.compile(optimizer, mean_prediction)
        fit(model, X, Y, shuffle=False, verbose=0)
    found["compiled again"] = model.get_weights()[0]
    return found


if __name__ == "__main__":
    out = Path(sys.argv[1])
    found = run(phalanx.fit, phalanx.evaluate, phalanx.predict, out, pipelines=True)
    if phalanx.detect().is_chief():
        np.savez(out / "found.npz", **found)
