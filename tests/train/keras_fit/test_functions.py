"""`phalanx.fit` in one process: the arguments of `model.fit`, and wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.data import Pipeline
from phalanx.errors import ConfigurationError, DataError, TrainingError

_random = np.random.default_rng(0)
X = _random.normal(size=(40, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
CLASSES = (Y[:, 0] > 0).astype("int32")


def make_model(loss: str = "mse", **options: Any) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2 if "sparse" in loss else 1)])
    model.compile(keras.optimizers.SGD(0.05), loss, **options)
    return model


def batches() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(8)


class Numbers(keras.utils.PyDataset):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.epochs: list[str] = []

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]

    def on_epoch_begin(self) -> None:
        self.epochs.append("begin")

    def on_epoch_end(self) -> None:
        self.epochs.append("end")


def generate() -> Any:
    while True:
        yield X[:8], Y[:8]


ARGUMENTS: dict[str, tuple[str, Any]] = {
    "arrays": ("mse", lambda: {"x": X, "y": Y, "shuffle": False}),
    "arrays, shuffled": ("mse", lambda: {"x": X, "y": Y, "batch_size": 7}),
    "batch_size": ("mse", lambda: {"x": X, "y": Y, "batch_size": 16, "shuffle": False}),
    "sample_weight": ("mse", lambda: {"x": X, "y": Y, "sample_weight": np.abs(Y[:, 0])}),
    "class_weight": (
        "sparse_categorical_crossentropy",
        lambda: {"x": X, "y": CLASSES, "class_weight": {0: 0.5, 1: 3.0}, "shuffle": False},
    ),
    "class_weight of a dataset": (
        "sparse_categorical_crossentropy",
        lambda: {
            "x": tf.data.Dataset.from_tensor_slices((X, CLASSES)).batch(8),
            "class_weight": {0: 0.5, 1: 3.0},
        },
    ),
    "validation_split": ("mse", lambda: {"x": X, "y": Y, "validation_split": 0.25}),
    "validation_data and its size": (
        "mse",
        lambda: {
            "x": batches(),
            "validation_data": (X, Y),
            "validation_batch_size": 16,
            "validation_steps": 2,
        },
    ),
    "validation_freq": (
        "mse",
        lambda: {"x": batches(), "validation_data": batches(), "validation_freq": 2},
    ),
    "initial_epoch": ("mse", lambda: {"x": batches(), "initial_epoch": 2}),
    "steps_per_epoch": ("mse", lambda: {"x": batches().repeat(), "steps_per_epoch": 3}),
    "steps_per_epoch of exactly one pass": ("mse", lambda: {"x": batches(), "steps_per_epoch": 5}),
    "fewer steps than a pass": ("mse", lambda: {"x": batches(), "steps_per_epoch": 2}),
    "a generator": ("mse", lambda: {"x": generate(), "steps_per_epoch": 2}),
    "a PyDataset": ("mse", lambda: {"x": Numbers(), "shuffle": False}),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_mean_what_they_mean_in_keras(name: str) -> None:
    loss, arguments = ARGUMENTS[name]
    theirs, ours = make_model(loss), make_model(loss)
    their_history = theirs.fit(**arguments(), epochs=4, verbose=0)
    keras.utils.set_random_seed(1)
    our_history = phalanx.fit(ours, **arguments(), epochs=4, verbose=0)
    for one, other in zip(theirs.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)
    assert our_history.epoch == their_history.epoch
    assert set(our_history.history) == set(their_history.history)
    for key, values in their_history.history.items():
        assert our_history.history[key] == pytest.approx(values, abs=1e-4), key


def test_a_second_call_continues_with_the_optimizer() -> None:
    theirs, ours = make_model(), make_model()
    for model in (theirs, ours):
        model.compile(keras.optimizers.Adam(0.05), "mse")
    for _ in range(2):
        theirs.fit(batches(), verbose=0)
        phalanx.fit(ours, batches(), verbose=0)
    np.testing.assert_allclose(theirs.get_weights()[0], ours.get_weights()[0], atol=2e-5)
    assert int(ours.optimizer.iterations) == 10


def test_a_py_dataset_learns_of_its_epochs() -> None:
    data = Numbers()
    phalanx.fit(make_model(), data, epochs=2, verbose=0)
    assert data.epochs == ["begin", "end", "begin", "end"]


def test_a_pipeline() -> None:
    pipeline = Pipeline.from_arrays({"x": X, "y": Y}).map(lambda batch: (batch["x"], batch["y"]))
    theirs, ours = make_model(), make_model()
    theirs.fit(X, Y, batch_size=8, shuffle=False, verbose=0)
    phalanx.fit(ours, pipeline, batch_size=8, verbose=0)
    np.testing.assert_allclose(theirs.get_weights()[0], ours.get_weights()[0], atol=2e-5)


def test_an_interrupted_run_continues_from_model_dir(tmp_path: Path) -> None:
    whole, resumed = make_model(), make_model()
    phalanx.fit(whole, batches(), epochs=4, verbose=0)
    phalanx.fit(resumed, batches(), epochs=2, verbose=0, model_dir=str(tmp_path))
    again = make_model()
    history = phalanx.fit(again, batches(), epochs=4, verbose=0, model_dir=str(tmp_path))
    assert history.epoch == [2, 3]
    np.testing.assert_allclose(whole.get_weights()[0], again.get_weights()[0], atol=1e-6)


def test_a_model_that_is_trained_again_has_checkpoints_of_its_own(tmp_path: Path) -> None:
    def train(model: Any, folder: str | None, hooks: list[Any]) -> Any:
        phalanx.fit(model, batches(), epochs=2, verbose=0, model_dir=folder)
        model.layers[0].bias.trainable = False
        model.compile(keras.optimizers.Adam(0.05), "mse")
        config = phalanx.RunConfig(save_steps=7)
        options: dict[str, Any] = {"verbose": 0, "config": config, "hooks": hooks}
        return phalanx.fit(model, batches(), epochs=3, model_dir=folder, **options)

    whole, restarted = make_model(), make_model()
    assert train(whole, None, []).epoch == [0, 1, 2]
    with pytest.raises(RuntimeError, match="crash"):
        train(make_model(), str(tmp_path), [Crash()])
    assert (tmp_path / "fit-2/model.ckpt-7.index").exists()
    assert train(restarted, str(tmp_path), []).epoch == [1, 2]
    np.testing.assert_allclose(restarted.get_weights()[0], whole.get_weights()[0], atol=1e-6)


class Crash(phalanx.hooks.Hook):
    """Fails in the second epoch, when step 7 is saved."""

    def on_save(self, session: Any, path: str) -> None:
        if session.step == 7:
            raise RuntimeError("crash")


SHUFFLED: dict[str, Any] = {
    "arrays": lambda: {"x": X, "y": Y, "batch_size": 8},
    "batches of arrays": lambda: {"x": X, "y": Y, "batch_size": 8, "shuffle": "batch"},
    "a dataset with a seed": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(40, seed=3).batch(8)
    },
    "a dataset without a seed": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(40).batch(8)
    },
    "a PyDataset": lambda: {"x": Numbers()},
    "a pipeline": lambda: {
        "x": Pipeline.from_arrays({"x": X, "y": Y}, seed=5).map(lambda b: (b["x"], b["y"])),
        "batch_size": 8,
    },
    "fewer steps than a pass": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(40, seed=3).batch(8),
        "steps_per_epoch": 3,
    },
}


@pytest.mark.parametrize("name", SHUFFLED)
def test_a_resumed_run_reads_each_epoch_in_its_own_order(name: str, tmp_path: Path) -> None:
    config = phalanx.RunConfig(save_steps=7, seed=4)
    models = []
    for folder, crashes in (("whole", [False]), ("resumed", [True, False])):
        for crash in crashes:
            model = make_model()
            tf.random.set_seed(None)
            options: dict[str, Any] = {"epochs": 4, "verbose": 0, "config": config}
            try:
                folder_path = str(tmp_path / folder)
                data = SHUFFLED[name]()
                hooks = [Crash()] * crash
                phalanx.fit(model, **data, model_dir=folder_path, hooks=hooks, **options)
            except RuntimeError:
                assert crash
        models.append(model)
    np.testing.assert_allclose(models[0].get_weights()[0], models[1].get_weights()[0], atol=1e-6)


def test_nothing_is_kept_without_a_model_dir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    phalanx.fit(make_model(), batches(), verbose=0)
    assert list(tmp_path.iterdir()) == []


def test_flags_of_the_program_are_not_mistaken_for_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "--layers", "3", "--model-dir", str(tmp_path)])
    phalanx.fit(make_model(), batches(), verbose=0)
    assert (tmp_path / "checkpoint").exists()


def test_data_that_ends_too_early_is_read_again(caplog: pytest.LogCaptureFixture) -> None:
    theirs, ours = make_model(), make_model()
    theirs.fit(batches(), epochs=2, steps_per_epoch=7, verbose=0)
    phalanx.fit(ours, batches(), epochs=2, steps_per_epoch=7, verbose=0)
    np.testing.assert_allclose(theirs.get_weights()[0], ours.get_weights()[0], atol=2e-5)
    assert "the data ended after 5 of 7 steps of epoch 1" in caplog.text


class Raising(keras.callbacks.Callback):  # type: ignore[misc]
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        raise ZeroDivisionError("division by zero")


WRONG: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "a model that is not compiled": (
        keras.Sequential([keras.layers.Dense(1)]),
        {"x": X, "y": Y},
        ConfigurationError,
        "is not compiled: call model.compile",
    ),
    "no model": (X, {"x": Y}, ConfigurationError, "pass a compiled keras.Model"),
    "examples instead of batches": (
        None,
        {"x": tf.data.Dataset.range(4)},
        ConfigurationError,
        "no batch dimension",
    ),
    "arrays of unequal length": (None, {"x": X, "y": Y[:5]}, ValueError, "cardinality|same"),
    "validation_split of a dataset": (
        None,
        {"x": batches(), "validation_split": 0.2},
        ValueError,
        "validation_split",
    ),
    "targets beside a dataset": (None, {"x": batches(), "y": Y}, ValueError, "`y`"),
    "an empty dataset": (None, {"x": batches().take(0)}, DataError, "empty"),
    "a dataset that turns out to be empty": (
        None,
        {"x": batches().filter(lambda x, y: False)},
        DataError,
        "the training data has no batch: check its paths and filters",
    ),
    "train_steps": (
        None,
        {"x": X, "y": Y, "config": phalanx.RunConfig(train_steps=3)},
        ConfigurationError,
        "train_steps is set, .* epochs and steps_per_epoch",
    ),
    "no data": (None, {"x": None}, ConfigurationError, "x is None: pass arrays"),
    "negative epochs": (None, {"x": X, "y": Y, "epochs": -1}, ConfigurationError, "epochs is -1"),
    "batch_size with a dataset": (
        None,
        {"x": batches(), "batch_size": 4},
        ConfigurationError,
        "batch_size is 4, but x is a .*, which has its batches already",
    ),
    "a dataset that never ends": (
        None,
        {"x": batches().repeat()},
        ConfigurationError,
        "never ends, and steps_per_epoch is not set",
    ),
    "validation data that never ends": (
        None,
        {"x": batches(), "validation_data": batches().repeat()},
        ConfigurationError,
        "validation_data is a dataset that never ends, and validation_steps",
    ),
    "a callback that raises": (
        None,
        {"x": X, "y": Y, "callbacks": [Raising()]},
        TrainingError,
        "Raising.on_epoch_end raised ZeroDivisionError: division by zero",
    ),
    "a callback that is none": (
        None,
        {"x": X, "y": Y, "callbacks": [print]},
        ConfigurationError,
        "no keras.callbacks.Callback",
    ),
}


WRONG |= {
    f"{name} = {value!r}": (None, {"x": X, "y": Y, name: value}, ConfigurationError, message)
    for name, value, message in [
        ("batch_size", 0, "batch_size is 0: it must be a whole number of at least 1"),
        ("batch_size", "8", "batch_size is '8': it must be a whole number"),
        ("epochs", "3", "epochs is '3': it must be a whole number"),
        ("steps_per_epoch", -1, "steps_per_epoch is -1: it must be"),
        ("validation_split", 1.5, "validation_split is 1.5: it must be a fraction"),
        ("validation_freq", 0, "validation_freq is 0: it must be"),
        ("validation_freq", [1, 0], "validation_freq is 0: it must be"),
        ("verbose", "loud", "verbose is 'loud': it must be"),
    ]
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name: str) -> None:
    model, arguments, error, message = WRONG[name]
    with pytest.raises(error, match=message):
        phalanx.fit(make_model() if model is None else model, **{"verbose": 0, **arguments})


def test_no_epochs_train_nothing() -> None:
    model = make_model()
    before = model.get_weights()[0].copy()
    assert phalanx.fit(model, X, Y, epochs=0).epoch == []
    np.testing.assert_array_equal(model.get_weights()[0], before)


def test_predict_returns_what_keras_returns() -> None:
    model = make_model()
    expected = model.predict(X, batch_size=7, verbose=0)
    np.testing.assert_allclose(phalanx.predict(model, X, batch_size=7, verbose=0), expected)
    pipeline = Pipeline.from_arrays({"x": X}).map(lambda batch: batch["x"])
    np.testing.assert_allclose(
        phalanx.predict(model, pipeline, batch_size=7, verbose=0), expected, atol=1e-6
    )


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [(X, X, "pass a keras.Model"), (None, batches().repeat(), "steps is not set")],
)
def test_wrong_arguments_of_predict(model: Any, x: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        phalanx.predict(make_model() if model is None else model, x, verbose=0)


def test_predict_refuses_data_without_a_batch() -> None:
    with pytest.raises(DataError, match="x has no batch to predict"):
        phalanx.predict(make_model(), X[:0], verbose=0)


def test_run_eagerly_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"run_eagerly=True, which phalanx\.fit does"):
        phalanx.fit(make_model(run_eagerly=True), X, Y)


@pytest.mark.parametrize("metrics", [None, ["mae", "mse"]])
def test_evaluate_returns_what_keras_returns(metrics: Any) -> None:
    model = make_model(metrics=metrics)
    arguments = {"batch_size": 16, "sample_weight": np.abs(Y[:, 0]), "verbose": 0}
    expected = model.evaluate(X, Y, **arguments)
    assert phalanx.evaluate(model, X, Y, **arguments) == pytest.approx(expected, abs=1e-5)
    expected = model.evaluate(X, Y, **arguments, return_dict=True)
    found = phalanx.evaluate(model, X, Y, **arguments, return_dict=True)
    assert found == pytest.approx(expected, abs=1e-5)


def test_evaluate_some_batches() -> None:
    model = make_model()
    expected = model.evaluate(batches(), steps=2, verbose=0)
    assert phalanx.evaluate(model, batches(), steps=2, verbose=0) == pytest.approx(expected)


class Terminating(keras.callbacks.Callback):  # type: ignore[misc]
    """Makes the second epoch diverge."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1:
            self.model.optimizer.learning_rate = 1e30


def test_weights_that_are_nan_are_not_saved(tmp_path: Path) -> None:
    callbacks = [Terminating(), keras.callbacks.TerminateOnNaN()]
    config = phalanx.RunConfig(save_steps=1)
    options: dict[str, Any] = {"epochs": 3, "model_dir": str(tmp_path), "verbose": 0}
    phalanx.fit(make_model(), batches(), config=config, callbacks=callbacks, **options)
    checkpoint = tf.train.latest_checkpoint(str(tmp_path))
    reader = tf.train.load_checkpoint(checkpoint)
    for name in reader.get_variable_to_shape_map():
        value = reader.get_tensor(name)
        if getattr(value, "dtype", None) == np.float32:
            assert np.isfinite(value).all(), (checkpoint, name)


def test_epoch_is_shown_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "phalanx"):
        config = phalanx.RunConfig(log_steps=5)
        phalanx.fit(make_model(), X, Y, batch_size=8, epochs=2, verbose=2, config=config)
    assert capsys.readouterr().out.count("loss: ") == 2
    assert not [text for text in caplog.messages if "loss" in text or "examples/sec" in text]
