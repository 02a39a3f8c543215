"""Keras callbacks in `phalanx.run`: the same calls and effects as in Keras' own `fit`."""

from __future__ import annotations

import csv
import http.server
import json
import logging
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tests.train.small_experiment import Line, make_points

import phalanx
from phalanx import hooks
from phalanx.errors import ConfigurationError, TrainingError
from phalanx.train.model_dir.metrics_log import read_evaluations

EVENTS = [
    *(f"on_{part}_{end}" for part in ("train", "epoch", "test") for end in ("begin", "end")),
    *(f"on_{part}_batch_{end}" for part in ("train", "test") for end in ("begin", "end")),
]


class Record(keras.callbacks.Callback):  # type: ignore[misc]
    """Records every call, with its number and its logs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []


def _record(event: str) -> Any:
    def method(self: Record, *arguments: Any, logs: Any = None) -> None:
        *number, values = arguments if logs is None else (*arguments, logs)
        self.calls.append((event, *number, dict(values)))

    return method


for _event in EVENTS:
    setattr(Record, _event, _record(_event))


def fit(callbacks: list[Any], epochs: int = 2, line: Line | None = None, **settings: Any) -> Any:
    """Train with Keras itself; return the model."""
    keras.utils.set_random_seed(1)
    context, line = phalanx.Context(batch_size=16), line or Line()
    model = line.model(context)
    train, test = line.train_data(context), line.eval_data(context)
    options = {"epochs": epochs, "verbose": 0, "validation_data": test, **settings}
    model.fit(train, callbacks=callbacks, **options)
    return model


@pytest.fixture
def run(config: phalanx.RunConfig) -> Any:
    def run_line(
        callbacks: list[Any], epochs: int = 2, line: Line | None = None, **settings: Any
    ) -> phalanx.Result:
        settings = {"train_steps": None, "epochs": epochs, **settings}
        return phalanx.run(line or Line(), config.replace(**settings), callbacks=callbacks)

    return run_line


def assert_same_calls(ours: list[Any], theirs: list[Any]) -> None:
    assert [call[:-1] for call in ours] == [call[:-1] for call in theirs]
    for our, their in zip(ours, theirs, strict=True):
        assert list(our[-1]) == list(their[-1])
        np.testing.assert_allclose(list(our[-1].values()), list(their[-1].values()), rtol=1e-4)


def assert_same_weights(ours: Any, theirs: Any) -> None:
    for our, their in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(our, their, rtol=1e-4, atol=1e-6)


def test_calls_are_those_of_fit(run: Any) -> None:
    ours, theirs = Record(), Record()
    result = run([ours])
    model = fit([theirs])
    assert_same_calls(ours.calls, theirs.calls)
    assert ours.params == theirs.params
    assert ours.model is result.model
    assert result.history is ours.model.history
    assert result.history.epoch == model.history.epoch
    for name, values in model.history.history.items():
        np.testing.assert_allclose(result.history.history[name], values, rtol=1e-4)
    assert_same_weights(result.model, model)


@pytest.mark.parametrize(
    ("pattern", "options"),
    [
        ("{epoch}-{val_loss:.3f}.keras", {}),
        ("{epoch}.weights.h5", {"save_weights_only": True}),
        ("{epoch}.keras", {"save_best_only": True, "monitor": "val_loss", "mode": "max"}),
        ("{epoch}-{batch}.weights.h5", {"save_weights_only": True, "save_freq": 3}),
    ],
)
def test_model_checkpoint_writes_the_same_files(
    run: Any, tmp_path: Path, pattern: str, options: dict[str, Any]
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    run([keras.callbacks.ModelCheckpoint(ours / pattern, **options)])
    model = fit([keras.callbacks.ModelCheckpoint(theirs / pattern, **options)])
    names = sorted(path.name for path in theirs.iterdir())
    assert names and names == sorted(path.name for path in ours.iterdir())
    for name in names:
        loaded = []
        for path in (ours / name, theirs / name):
            if name.endswith(".keras"):
                loaded.append(keras.saving.load_model(path))
            else:
                loaded.append(keras.models.clone_model(model))
                loaded[-1].load_weights(path)
        assert_same_weights(*loaded)
        if name.endswith(".keras"):
            first, second = (one.optimizer.iterations.numpy() for one in loaded)
            assert first == second > 0


def test_early_stopping_restores_the_best_weights(run: Any, tmp_path: Path) -> None:
    # The loss falls, so the first epoch is the best one for this callback.
    def stop() -> Any:
        return keras.callbacks.EarlyStopping(
            mode="max", monitor="val_loss", patience=2, restore_best_weights=True
        )

    ours, theirs = stop(), stop()
    result = run([ours], epochs=9)
    model = fit([theirs], epochs=9)
    assert result.step == 12 and ours.stopped_epoch == theirs.stopped_epoch == 2
    assert_same_weights(result.model, model)
    assert result.history.epoch == model.history.epoch
    # The final checkpoint and the final evaluation are those of the restored weights.
    evaluation = model.evaluate(*make_points(), verbose=0)
    np.testing.assert_allclose(result.metrics["loss"], evaluation[0], rtol=1e-4)
    saved = Line().model(phalanx.Context())
    tf.train.Checkpoint(model=saved).restore(result.checkpoint).expect_partial()
    assert_same_weights(saved, model)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (epoch + 2)),
        lambda: keras.callbacks.ReduceLROnPlateau(
            "val_loss", factor=0.5, patience=1, mode="max", verbose=0
        ),
        lambda: keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: None,
            on_epoch_begin=lambda epoch, logs: None,
        ),
    ],
    ids=["LearningRateScheduler", "ReduceLROnPlateau", "LambdaCallback"],
)
def test_learning_rate_follows_the_callback(run: Any, make: Any) -> None:
    result = run([make()], epochs=4)
    model = fit([make()], epochs=4)
    ours, theirs = result.history.history, model.history.history
    assert ours.keys() == theirs.keys()
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4)
    np.testing.assert_allclose(
        float(result.model.optimizer.learning_rate), float(model.optimizer.learning_rate)
    )
    assert_same_weights(result.model, model)


class Change(keras.callbacks.Callback):  # type: ignore[misc]
    """Changes a weight, a variable of the optimizer and the learning rate, at chosen moments."""

    def on_train_begin(self, logs: Any = None) -> None:
        self.model.layers[0].bias.assign([3.0, 2.0, 1.0])

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 2:
            self.model.optimizer.learning_rate.assign(0.01)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == 1:
            self.model.layers[1].kernel.assign(self.model.layers[1].kernel * 2)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.set_weights([weight / 2 for weight in self.model.get_weights()])
        for variable in self.model.optimizer.variables:
            if "momentum" in variable.path:
                variable.assign(variable * 0)
        self.model.optimizer.learning_rate = 0.03


class Momentum(Line):
    """A line that is trained with momentum, and with moving averages if asked for."""

    def __init__(self, use_ema: bool = False, rate: float = 0.02) -> None:
        super().__init__()
        self.use_ema = use_ema
        self.rate = rate

    def model(self, context: phalanx.Context) -> Any:
        model = super().model(context)
        optimizer = keras.optimizers.SGD(
            self.rate, momentum=0.9, use_ema=self.use_ema, ema_momentum=0.8
        )
        model.compile(optimizer, "mse", metrics=["mae"])
        return model


def test_changes_of_weights_and_optimizer_take_effect(run: Any) -> None:
    ours, theirs = Record(), Record()
    result = run([Change(), ours], epochs=3, line=Momentum())
    model = fit([Change(), theirs], epochs=3, line=Momentum())
    assert_same_calls(ours.calls, theirs.calls)
    assert_same_weights(result.model, model)


@pytest.mark.parametrize("swap_on_epoch", [False, True])
def test_moving_averages_are_swapped_for_evaluations(run: Any, swap_on_epoch: bool) -> None:
    result = run([keras.callbacks.SwapEMAWeights(swap_on_epoch)], 3, Momentum(use_ema=True))
    model = fit([keras.callbacks.SwapEMAWeights(swap_on_epoch)], 3, Momentum(use_ema=True))
    for name, values in model.history.history.items():
        np.testing.assert_allclose(result.history.history[name], values, rtol=1e-4)
    assert_same_weights(result.model, model)


def test_csv_logger_writes_the_same_table(run: Any, tmp_path: Path) -> None:
    run([keras.callbacks.CSVLogger(tmp_path / "ours.csv")])
    fit([keras.callbacks.CSVLogger(tmp_path / "theirs.csv")])
    ours, theirs = (
        list(csv.reader((tmp_path / name).open())) for name in ("ours.csv", "theirs.csv")
    )
    assert ours[0] == theirs[0]
    np.testing.assert_allclose(np.array(ours[1:], float), np.array(theirs[1:], float), rtol=1e-4)


def read_tags(directory: Path) -> list[Any]:
    found = []
    for path in sorted(directory.rglob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            part = path.parent.name
            found += [(part, value.tag, event.step) for value in event.summary.value]
    return sorted(found)


@pytest.mark.parametrize(
    "options",
    [
        {"histogram_freq": 1, "write_images": True},
        {"update_freq": 2, "embeddings_freq": 1},
        {"update_freq": "batch", "write_steps_per_second": True, "profile_batch": (2, 3)},
    ],
)
def test_tensorboard_writes_the_same_summaries(
    run: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    keras.utils.clear_session()
    run([keras.callbacks.TensorBoard(tmp_path / "ours", **options)])
    keras.utils.clear_session()
    fit([keras.callbacks.TensorBoard(tmp_path / "theirs", **options)])
    theirs = read_tags(tmp_path / "theirs")
    assert theirs and read_tags(tmp_path / "ours") == theirs
    for folder in ("ours", "theirs"):
        profiles = list((tmp_path / folder).rglob("*.xplane.pb"))
        assert bool(profiles) == ("profile_batch" in options)


def test_terminate_on_nan_ends_the_run_without_an_error(run: Any) -> None:
    result = run([keras.callbacks.TerminateOnNaN()], epochs=30, line=Line(rate=1e18))
    model = fit([keras.callbacks.TerminateOnNaN()], epochs=30, line=Line(rate=1e18))
    assert result.history.epoch == model.history.epoch == [0]
    with pytest.raises(TrainingError, match=r"TerminateOnNaN.on_train_batch_end raised RuntimeErr"):
        run(
            [keras.callbacks.TerminateOnNaN(raise_error=True)],
            line=Line(rate=1e18),
            model_dir=f"{result.model_dir}/other",
        )


def test_progress_bar_of_keras(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run([keras.callbacks.ProgbarLogger()])
    shown = capsys.readouterr().out
    assert "Epoch 2/2" in shown and "4/4" in shown and "val_loss" in shown


def test_remote_monitor_posts_each_epoch(run: Any) -> None:
    posted = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        root = f"http://127.0.0.1:{server.server_port}"
        run([keras.callbacks.RemoteMonitor(root, send_as_json=True)])
        server.shutdown()
        thread.join()
    assert [entry["epoch"] for entry in posted] == [0, 1]
    assert {"loss", "mae", "val_loss", "val_mae"} < posted[0].keys()


def test_backup_and_restore_is_replaced_by_the_checkpoints_of_the_run(
    run: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "phalanx"):
        result = run([keras.callbacks.BackupAndRestore(tmp_path / "backup")], save_seconds=10**6)
    assert "BackupAndRestore: the checkpoints in" in caplog.text
    assert not (tmp_path / "backup").exists()
    assert (Path(result.model_dir) / "model.ckpt-4.index").exists()


def test_every_callback_of_keras_is_known() -> None:
    names = {name for name in dir(keras.callbacks) if name[0].isupper()}
    tested = {
        *("BackupAndRestore", "CSVLogger", "Callback", "CallbackList", "EarlyStopping", "History"),
        *("LambdaCallback", "LearningRateScheduler", "ModelCheckpoint", "OrbaxCheckpoint"),
        *("ProgbarLogger", "ReduceLROnPlateau", "RemoteMonitor", "SwapEMAWeights"),
        *("TensorBoard", "TerminateOnNaN"),
    }
    assert names == tested


def test_callback_list_and_history_of_the_user_are_used(run: Any) -> None:
    history, record = keras.callbacks.History(), Record()
    result = run(keras.callbacks.CallbackList([history, [record]]))
    assert result.history is history and history.epoch == [0, 1]
    assert record.calls[0][0] == "on_train_begin"


def test_stop_training_in_a_batch_ends_the_epoch_there(run: Any) -> None:
    class Stop(Record):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            super().on_train_batch_end(batch, logs=logs)
            self.model.stop_training = batch == 1

    ours, theirs = Stop(), Stop()
    result = run([ours], epochs=5)
    fit([theirs], epochs=5)
    assert result.step == 2
    assert_same_calls(ours.calls, theirs.calls)


def test_last_step_inside_an_epoch_ends_that_epoch(run: Any) -> None:
    record = Record()
    result = run([record], epochs=None, train_steps=6)
    assert [call[:2] for call in record.calls if "epoch" in call[0]] == [
        ("on_epoch_begin", 0), ("on_epoch_end", 0), ("on_epoch_begin", 1), ("on_epoch_end", 1)
    ]  # fmt: skip
    assert record.params["epochs"] == 2 and result.history.epoch == [0, 1]
    assert record.calls[-1][0] == "on_train_end"


def test_epochs_continue_after_a_restart(run: Any) -> None:
    before, after, whole = Record(), Record(), Record()
    run([before], epochs=2)
    result = run([after], epochs=4)
    numbers = [call[1] for call in after.calls if call[0] == "on_epoch_end"]
    assert numbers == result.history.epoch == [2, 3]
    fit([whole], epochs=4)
    begin = [call[:2] for call in whole.calls].index(("on_epoch_begin", 2))
    assert_same_calls(after.calls[1:], whole.calls[begin:])
    # A run that ended inside an epoch continues with the batch that follows.
    inside, rest = Record(), Record()
    run([inside], epochs=None, train_steps=6, model_dir=f"{result.model_dir}/inside")
    run([rest], epochs=2, model_dir=f"{result.model_dir}/inside")
    assert [call[:2] for call in rest.calls[1:3]] == [
        ("on_epoch_begin", 1), ("on_train_batch_begin", 2)
    ]  # fmt: skip
    fit([whole], epochs=2)
    assert_same_calls(rest.calls[-1:], whole.calls[-1:])


@pytest.mark.parametrize(("frequency", "steps"), [(2, [8, 12]), ([1, 3], [4, 12])])
def test_validation_frequency(config: phalanx.RunConfig, frequency: Any, steps: list[int]) -> None:
    hook = hooks.CallbackHook([], validation_freq=frequency)
    result = phalanx.run(Line(), config.replace(train_steps=None, epochs=3), hooks=[hook])
    assert [entry.step for entry in read_evaluations(result.model_dir)] == steps
    assert result.history is not None
    assert len(result.history.history["val_loss"]) == (1 if frequency == 2 else 2)


def test_epoch_is_evaluated_once(run: Any) -> None:
    result = run([keras.callbacks.History()], epochs=2, eval_every_steps=2)
    assert [entry.step for entry in read_evaluations(result.model_dir)] == [2, 4, 6, 8]


def test_steps_run_in_groups_unless_a_callback_needs_every_batch(
    run: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    bar = keras.callbacks.ProgbarLogger()
    assert hooks.CallbackHook([bar, keras.callbacks.TerminateOnNaN()]).due(0) is None
    assert hooks.CallbackHook([keras.callbacks.TensorBoard(tmp_path)]).due(0) is None
    assert hooks.CallbackHook([keras.callbacks.ModelCheckpoint("a.keras", save_freq=5)]).due(3) == 5
    assert hooks.CallbackHook([Record()]).due(3) == 4
    with caplog.at_level(logging.INFO, "phalanx"):
        run([Record()], epochs=1)
    assert "Record: called for every batch, so steps run one at a time" in caplog.text


def test_error_of_a_callback_names_it(run: Any) -> None:
    class Broken(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise KeyError("my mistake")

    with pytest.raises(TrainingError, match=r"Broken.on_epoch_end raised KeyError: 'my m") as info:
        run([Broken()])
    assert isinstance(info.value.__cause__, KeyError)


def test_what_is_no_callback_is_rejected(run: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"callbacks contains 'a', which is no keras.call"):
        run(["a"])
    with pytest.raises(ConfigurationError, match=r"no keras.callbacks.Callback: create one"):
        run([keras.callbacks.History])


class Module(tf.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.kernel = tf.Variable(tf.ones([4, 1]))

    def __call__(self, x: Any, training: bool = False) -> Any:
        return x @ self.kernel


def test_callback_that_needs_a_keras_model_is_rejected(run: Any, tmp_path: Path) -> None:
    line = Line()
    settings: dict[str, Any] = {"optimizer": "sgd", "loss": "mse"}
    experiment: Any = phalanx.Experiment(
        model=Module, train_data=line.train_data, eval_data=line.eval_data, **settings
    )
    with pytest.raises(
        ConfigurationError, match=r"SwapEMAWeights needs a keras.Model, but the mod"
    ):
        run([keras.callbacks.SwapEMAWeights()], line=experiment)
    record = Record()
    assert run([record], line=experiment).step == 8
    assert record.calls[-1][0] == "on_train_end"


def test_optimizer_of_the_experiment_is_the_one_that_callbacks_change(run: Any) -> None:
    line = Line()
    experiment: Any = phalanx.Experiment(
        model=lambda: line.model(phalanx.Context()),
        train_data=line.train_data,
        optimizer=lambda: keras.optimizers.SGD(0.5),
    )
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    result = run([schedule], epochs=2, line=experiment)
    np.testing.assert_allclose(result.history.history["learning_rate"], [0.25, 0.125])
    assert float(result.model.optimizer.learning_rate) == 0.125


def test_epoch_numbers_begin_with_the_initial_epoch(config: phalanx.RunConfig) -> None:
    record = Record()
    hook = hooks.CallbackHook([record], initial_epoch=5)
    phalanx.run(Line(), config.replace(train_steps=None, epochs=1), hooks=[hook])
    assert record.params["epochs"] == 6
    assert hook.history.epoch == [5]


def test_float16_and_accumulation_with_callbacks(run: Any) -> None:
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    try:
        result = run([schedule, Change()], mixed_precision="float16", accumulate=2, line=Momentum())
    finally:
        keras.mixed_precision.set_global_policy("float32")
    # In the second epoch, the rate of 0.03 / 2 is replaced before the third batch.
    np.testing.assert_allclose(result.history.history["learning_rate"], [0.01, 0.01])
    np.testing.assert_allclose(float(result.model.optimizer.learning_rate), 0.03)
    assert result.step == 8
