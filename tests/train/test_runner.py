"""Runs of one process: what they compute, and how they reject invalid input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.errors import ConfigurationError, DataError
from phalanx.train.loop.session import Session
from phalanx.train.setting_checks import check_recurrent_layers
from phalanx.train.step.step_function import StepFunction

Fit = Callable[..., phalanx.Result]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)


def make_xy(count: int = 50) -> tuple[Any, Any]:
    random = np.random.RandomState(1)
    x = random.randn(count, 4).astype("float32")
    return x, (x @ np.array([[1.0], [-2.0], [0.5], [0.0]], "float32"))


def read(context: phalanx.Context) -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices(make_xy())
    return data.shard(context.num_shards, context.shard).batch(context.batch_size)


def make_model(optimizer: Any = "sgd", loss: Any = "mse", **options: Any) -> Any:
    keras.utils.set_random_seed(3)
    hidden = keras.layers.Dense(5, activation="tanh", **options)
    model = keras.Sequential([keras.Input((4,)), hidden, keras.layers.Dense(1)])
    model.compile(optimizer, loss, metrics=["mae"])
    return model


def train(tmp_path: Path, hooks: Any = (), steps: int = 7, **functions: Any) -> phalanx.Result:
    settings: dict[str, Any] = {"model_dir": str(tmp_path / "run"), "train_steps": steps}
    settings["global_batch_size"] = 16
    settings |= functions.pop("settings", {})
    functions = {"model": make_model, "train_data": read, "eval_data": read, **functions}
    return phalanx.run(phalanx.Experiment(**functions), phalanx.RunConfig(**settings), hooks=hooks)


def excluded() -> Any:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        lambda: keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.05, 10)),
        excluded,
        lambda: keras.optimizers.RMSprop(0.01, clipnorm=0.05),
        lambda: keras.optimizers.Adagrad(0.1, global_clipnorm=0.05),
        lambda: keras.optimizers.Lamb(0.05),
        lambda: keras.optimizers.Muon(0.01),
    ],
    ids=["momentum", "schedule", "decay", "clipnorm", "global clipnorm", "lamb", "muon"],
)
def test_training_gives_the_weights_of_keras_fit(tmp_path: Path, make_optimizer: Any) -> None:
    plain = make_model(make_optimizer(), kernel_regularizer="l2")
    plain.fit(*make_xy(), batch_size=16, epochs=2, shuffle=False, verbose=0)
    model = lambda: make_model(make_optimizer(), kernel_regularizer="l2")  # noqa: E731
    result = train(tmp_path, model=model, steps=8)
    for found, wanted in zip(result.model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    evaluated = plain.evaluate(*make_xy(), batch_size=16, verbose=0, return_dict=True)
    assert result.metrics == pytest.approx(evaluated, rel=1e-4)


def test_tensorflow_reads_the_checkpoint(tmp_path: Path) -> None:
    result = train(tmp_path, model=lambda: make_model("adam"))
    model = make_model()
    tf.train.Checkpoint(model=model).restore(result.checkpoint).expect_partial()
    for found, wanted in zip(model.get_weights(), result.model.get_weights(), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_restarted_run_continues_from_its_checkpoint(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", steps=9, model=lambda: make_model("adam"))
    train(tmp_path / "parts", steps=5, model=lambda: make_model("adam"))
    rest = train(tmp_path / "parts", steps=9, model=lambda: make_model("adam"))
    for found, wanted in zip(rest.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"accumulate": 2}, marks=pytest.mark.slow),
        pytest.param({"clip_norm": 0.1}, marks=pytest.mark.slow),
    ],
)
def test_xla_gives_the_same_weights(tmp_path: Path, settings: Any) -> None:
    plain = train(tmp_path / "plain", settings=settings)
    compiled = train(tmp_path / "xla", settings={**settings, "xla": True})
    for found, wanted in zip(compiled.model.get_weights(), plain.model.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_mixed_precision_keeps_float32_weights(tmp_path: Path, kind: str) -> None:
    seen: list[str] = []

    def model() -> Any:
        model = make_model()
        seen.append(model.layers[0].compute_dtype)
        return model

    try:
        result = train(tmp_path, model=model, steps=150, settings={"mixed_precision": kind})
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert seen == [kind]
    assert {weight.dtype for weight in result.model.trainable_variables} == {"float32"}
    assert result.metrics["loss"] < 1.0


def test_tf_module_with_a_custom_train_step(tmp_path: Path) -> None:
    class Line(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = [{"w": tf.Variable(tf.zeros([4, 1])), "b": tf.Variable([0.0])}]

        def __call__(self, x: Any) -> Any:
            return x @ self.layers[0]["w"] + self.layers[0]["b"]

    def train_step(model: Any, batch: Any) -> Any:
        x, y = batch
        error = tf.square(model(x) - y)[:, 0]
        return {"loss": error, "largest": tf.reduce_max(error)}

    result = train(
        tmp_path, model=Line, train_step=train_step, optimizer=keras.optimizers.SGD(0.1), steps=60
    )
    assert result.metrics["loss"] < 0.01
    assert result.metrics["largest"] >= result.metrics["loss"]
    names = [name for name, _ in tf.train.list_variables(result.checkpoint)]
    assert "model/layers/0/w/.ATTRIBUTES/VARIABLE_VALUE" in names


def test_batch_norm_and_dropout_are_trained_reproducibly(tmp_path: Path) -> None:
    def model() -> Any:
        layers = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
        model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    result = train(tmp_path, model=model, steps=20, settings={"seed": 5})
    again = train(tmp_path / "again", model=model, steps=20, settings={"seed": 5})
    averages = result.model.layers[0].moving_mean.numpy()
    assert np.abs(averages).max() > 0
    np.testing.assert_array_equal(result.model.get_weights()[-1], again.model.get_weights()[-1])


def weigh(weight: float) -> Callable[[phalanx.Context], tf.data.Dataset]:
    return lambda context: read(context).map(lambda x, y: (x, y, tf.fill(tf.shape(y)[:1], weight)))


def test_sample_weights_apply_to_every_kind_of_loss(tmp_path: Path) -> None:
    plain: Any = {"model": make_model, "optimizer": "sgd", "steps": 1}
    kinds = {"object": keras.losses.MeanSquaredError(), "name": "mse"}
    kinds["function"] = lambda y, p: tf.reduce_mean(tf.square(y - p), axis=-1)
    for name, loss in kinds.items():
        found = [
            train(tmp_path / f"{name}{weight}", loss=loss, eval_data=weigh(weight), **plain)
            for weight in (0.0, 1.0, 2.0)
        ]
        nothing, once, twice = (result.metrics["loss"] for result in found)
        assert nothing == 0
        assert twice == pytest.approx(2 * once)
    bad(tmp_path, "sample weights, but the loss is one number", train_data=weigh(1.0),
        loss=lambda y, p: tf.reduce_mean(tf.square(y - p)), optimizer="sgd")  # fmt: skip


def test_custom_steps_report_their_own_values(tmp_path: Path) -> None:
    def train_step(model: Any, batch: Any) -> Any:
        x, y = batch
        error = tf.square(model(x, training=True) - y)[:, 0]
        return {"loss": error, "largest": tf.reduce_max(error)}

    def eval_step(model: Any, batch: Any) -> Any:
        x, y = batch
        return {"loss": tf.square(model(x) - y)[:, 0], "bias": tf.reduce_mean(model(x) - y)}

    reported: list[dict[str, float]] = []

    class Listen(phalanx.hooks.Hook):
        def on_epoch(self, session: Session, values: Any) -> None:
            reported.append(dict(values))

    result = train(tmp_path / "own", [Listen()], train_step=train_step, eval_step=eval_step)
    assert result.metrics.keys() == {"loss", "bias"}
    assert reported[0].keys() == {"loss", "largest"}
    result = train(tmp_path / "compiled", [Listen()], train_step=train_step)
    assert result.metrics.keys() == {"loss", "mae"}
    assert reported[-1].keys() == {"loss", "largest"}


def test_metrics_are_added_to_those_of_a_compiled_model(tmp_path: Path) -> None:
    metrics = [keras.metrics.RootMeanSquaredError(name="rmse")]
    result = train(tmp_path, metrics=lambda: metrics)
    assert result.metrics.keys() == {"loss", "mae", "rmse"}
    assert result.metrics["rmse"] ** 2 == pytest.approx(result.metrics["loss"], rel=1e-4)


def test_damaged_checkpoint_is_named_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(tmp_path, settings={"save_steps": 4})
    data = next((tmp_path / "run").glob("model.ckpt-7.data-*"))
    data.write_bytes(data.read_bytes()[:100])
    steps: list[int] = []
    began = phalanx.hooks.ActionHook(phalanx.hooks.Every(steps=1), lambda s: steps.append(s.step))
    assert train(tmp_path, [began], steps=9).step == 9
    assert steps[0] == 5
    assert "model.ckpt-7 is damaged" in caplog.text
    assert "model.ckpt-4 instead of" in caplog.text
    for data in (tmp_path / "run").glob("model.ckpt-*.data-*"):
        data.unlink()
    bad(tmp_path, r"model.ckpt-9 is damaged .*; none of the other 2 can be read", steps=11)


def bad(tmp_path: Path, match: str, kind: Any = ConfigurationError, **functions: Any) -> None:
    with pytest.raises(kind, match=match) as caught:
        train(tmp_path, **functions)
    assert "in user code" not in str(caught.value)


def test_invalid_data_is_rejected(tmp_path: Path) -> None:
    bad(tmp_path, "train_data is empty for shard 0 of 1", DataError,
        train_data=lambda context: read(context).take(0))  # fmt: skip
    bad(tmp_path, "the training data has no batch", DataError,
        train_data=lambda context: read(context).filter(lambda x, y: False))  # fmt: skip
    bad(tmp_path, "return a tf.data.Dataset", train_data=lambda context: make_xy())
    rows = iter([(np.zeros([16, 4]), np.zeros([16, 1]))])
    signature = (tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1]))
    bad(tmp_path, "the data ended too early: .* read again after step 1, and 7 steps", DataError,
        train_data=lambda context: tf.data.Dataset.from_generator(
            lambda: rows, output_signature=signature))  # fmt: skip


def test_invalid_models_and_losses_are_rejected(tmp_path: Path) -> None:
    bad(tmp_path, r"the loss has the shape \(None, 1\)", loss=lambda y, p: tf.square(y - p),
        optimizer="sgd")  # fmt: skip
    bad(tmp_path, "the loss is None", loss=lambda y, p: None, optimizer="sgd")
    bad(tmp_path, "one for each example", tf.errors.InvalidArgumentError,
        loss=lambda y, p: tf.zeros([3]), optimizer="sgd")  # fmt: skip
    bad(tmp_path, "return a keras.Model", model=lambda: 3)
    bad(tmp_path, r"does not accept the batches of the data \(\(4,\) float32, .*data is batched",
        train_data=lambda context: read(context).unbatch())  # fmt: skip
    bad(tmp_path, "has no optimizer", model=lambda: keras.Sequential([keras.Input((4,))]))

    class Forgetful(tf.Module):  # type: ignore[misc]
        def __call__(self, x: Any) -> Any:
            return x @ tf.Variable(tf.zeros([4, 1]))

    bad(tmp_path, "creates variables each time", model=Forgetful, loss="mse", optimizer="sgd")


def test_invalid_directories_are_rejected(tmp_path: Path) -> None:
    bad(tmp_path, "cannot write to s3://", settings={"model_dir": "s3://bucket/run"})
    bad(tmp_path, "cannot write to s3://", settings={"model_dir": "s3://there/run"})
    bad(tmp_path, "model_dir is not set", settings={"model_dir": None})
    file = tmp_path / "file"
    file.write_text("")
    bad(tmp_path, "cannot be written", settings={"model_dir": str(file / "run")})
    train(tmp_path, model=lambda: make_model("adam"))
    other = keras.layers.Dense(9)

    def wider() -> Any:
        model = keras.Sequential([keras.Input((4,)), other, keras.layers.Dense(1)])
        model.compile("adam", "mse")
        return model

    bad(tmp_path, "checkpoint of another model", model=wider)


def test_settings_that_do_not_fit_the_run_are_rejected(tmp_path: Path) -> None:
    bad(tmp_path, "global_batch_size is 16, which 1 replicas with 3 parts each cannot share evenly:"
        " take 15 or 18", settings={"accumulate": 3})  # fmt: skip
    bad(tmp_path, "mode is async, but this is one process", settings={"mode": "async"})
    bad(tmp_path, "devices is 3, but this host has 0 GPUs", settings={"devices": 3})


@pytest.mark.parametrize(
    ("replicas", "accumulate", "found"),
    [(2, 1, "2 replicas train"), (1, 4, "gradients are accumulated"), (1, 1, None)],
)
@pytest.mark.parametrize("wrap", [lambda layer: layer, keras.layers.Bidirectional])
def test_stateful_recurrent_layer_is_rejected_where_batches_do_not_follow_each_other(
    replicas: int, accumulate: int, found: str | None, wrap: Any
) -> None:
    def make_recurrent() -> Any:
        layer = wrap(keras.layers.LSTM(2, stateful=True, name="memory"))
        model = keras.Sequential([keras.Input(batch_shape=(4, 3, 2)), layer])
        model.compile("sgd", "mse")
        return model

    step_function = StepFunction(phalanx.Experiment(model=make_recurrent), phalanx.Context())
    config = phalanx.RunConfig(accumulate=accumulate)
    if found is None:
        check_recurrent_layers(config, step_function, replicas)
        return
    with pytest.raises(ConfigurationError, match=rf"memory \(LSTM\) is stateful.*{found}"):
        check_recurrent_layers(config, step_function, replicas)
