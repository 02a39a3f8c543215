"""Steps that a model overrides: what they may do, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.step.optimizer_calls import find_optimizers
from phalanx.train.step.step_function import StepFunction

SPEC = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1]))
X, Y = np.ones((10, 3), "float32"), np.ones((10, 1), "float32")
GLOBAL = keras.optimizers.SGD(0.1)


class Model(keras.Model):  # type: ignore[misc]
    """Runs a function as its step."""

    def __init__(self, step: Callable[..., Any]) -> None:
        super().__init__()
        self.step = step
        self.dense = keras.layers.Dense(1)
        self.second = keras.optimizers.SGD(0.1)
        self.tracker = keras.metrics.Mean(name="tracker")
        self.hidden = keras.metrics.Mean(name="hidden")
        self.raw = tf.Variable(0.0, trainable=False)
        self.compile("sgd")

    @property
    def metrics(self) -> list[Any]:
        return [self.tracker]

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def gradients(self, data: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((data[1] - self(data[0])) ** 2)
        return loss, tape.gradient(loss, self.trainable_weights)

    def train_step(self, data: Any) -> Any:
        return self.step(self, data)


class Evaluated(Model):
    def train_step(self, data: Any) -> Any:
        return take_step(self, data)

    def test_step(self, data: Any) -> Any:
        return self.step(self, data)


def take_step(model: Any, data: Any) -> Any:
    loss, gradients = model.gradients(data)
    model.optimizer.apply(gradients, model.trainable_weights)
    return {"loss": loss}


def build(model: Any) -> StepFunction:
    step_function = StepFunction(phalanx.Experiment(model=lambda: model), phalanx.Context())
    step_function.build(SPEC, SPEC if isinstance(model, Evaluated) else None)
    return step_function


def never_applies(model: Any, data: Any) -> Any:
    return {"loss": model.gradients(data)[0]}


def without_gradients(model: Any, data: Any) -> Any:
    with tf.GradientTape() as tape:
        pass
    gradients = tape.gradient(tf.reduce_mean(model(data[0])), model.trainable_weights)
    model.optimizer.apply(gradients, model.trainable_weights)
    return {"loss": 0.0}


def in_a_condition(model: Any, data: Any) -> Any:
    loss, gradients = model.gradients(data)

    def apply() -> Any:
        model.optimizer.apply(gradients, model.trainable_weights)
        return 0.0

    tf.cond(loss > 0, apply, lambda: 0.0)
    return {"loss": loss}


def with_a_global_optimizer(model: Any, data: Any) -> Any:
    loss, gradients = model.gradients(data)
    GLOBAL.apply(gradients, model.trainable_weights)
    return {"loss": loss}


def assigns_a_tf_variable(model: Any, data: Any) -> Any:
    model.raw.assign_add(1.0)
    return take_step(model, data)


def assigns_a_foreign_variable(model: Any, data: Any) -> Any:
    GLOBAL.learning_rate.assign(0.5)
    return take_step(model, data)


def returns_no_dict(model: Any, data: Any) -> Any:
    return take_step(model, data)["loss"]


def returns_an_unlisted_metric(model: Any, data: Any) -> Any:
    model.hidden.update_state(1.0)
    return {**take_step(model, data), "hidden": model.hidden.result()}


def mixes_a_metric_with_the_batch(model: Any, data: Any) -> Any:
    values = take_step(model, data)
    model.tracker.update_state(values["loss"])
    return {"sum": model.tracker.result() + values["loss"]}


def returns_a_metric_before_its_update(model: Any, data: Any) -> Any:
    before = model.tracker.result()
    values = take_step(model, data)
    model.tracker.update_state(values["loss"])
    return {"before": before}


def minimizes(model: Any, data: Any) -> Any:
    model.optimizer.minimize(lambda: 0.0, model.trainable_weights)
    return {"loss": 0.0}


REFUSED: list[tuple[Callable[..., Any], str]] = [
    (never_applies, "train_step of Model calls none of the model's optimizers"),
    (without_gradients, "gradients that are all None|No gradients provided"),
    (in_a_condition, "applies gradients inside tf.cond"),
    (with_a_global_optimizer, "an optimizer that is no attribute of the model"),
    (assigns_a_tf_variable, "assigns a tf.Variable"),
    (assigns_a_foreign_variable, "assigns .*learning_rate, which is no variable of the model"),
    (returns_no_dict, "return a dict"),
    (returns_an_unlisted_metric, "returns hidden, the result of a metric that is not in"),
    (mixes_a_metric_with_the_batch, "returns sum, which depends on a metric and on something"),
    (returns_a_metric_before_its_update, "returns before, which depends on a metric .* before"),
]


@pytest.mark.parametrize(("step", "message"), REFUSED, ids=[step.__name__ for step, _ in REFUSED])
def test_what_no_run_can_do_is_refused_by_name(step: Callable[..., Any], message: str) -> None:
    with pytest.raises((ConfigurationError, ValueError), match=message):
        build(Model(step))


def test_minimize_does_not_exist_as_in_keras() -> None:
    with pytest.raises(AttributeError, match="minimize"):
        build(Model(minimizes))


def test_evaluation_that_calls_an_optimizer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="test_step of Evaluated calls the optimizer"):
        build(Evaluated(take_step))


def test_numbers_of_test_step_are_averaged_by_examples_and_metrics_merged() -> None:
    def step(model: Any, data: Any) -> Any:
        value = tf.reduce_mean(data[1])
        model.tracker.update_state(value)
        return {"mean": value, "squared": model.tracker.result() ** 2}

    y = np.arange(10, dtype="float32")[:, None]
    values = phalanx.evaluate(Evaluated(step), X, y, batch_size=4, return_dict=True, verbose=0)
    means = [1.5, 5.5, 8.5]
    assert values["mean"] == pytest.approx(4.5)
    assert values["squared"] == pytest.approx(np.mean(means) ** 2)


def test_one_update_is_left_to_the_engine() -> None:
    assert not build(Model(take_step)).updates_in_place


def update_twice(model: Any, data: Any) -> Any:
    take_step(model, data)
    loss, gradients = model.gradients(data)
    model.second.apply(gradients, model.trainable_weights)
    return {"loss": loss}


def read_updated(model: Any, data: Any) -> Any:
    take_step(model, data)
    return {"norm": tf.norm(model.dense.kernel)}


def assign_weights(model: Any, data: Any) -> Any:
    values = take_step(model, data)
    model.dense.bias.assign(tf.zeros([1]))
    return values


@pytest.mark.parametrize("step", [update_twice, read_updated, assign_weights])
def test_steps_that_need_their_updates_make_them_in_place(step: Callable[..., Any]) -> None:
    assert build(Model(step)).updates_in_place


def test_optimizers_are_found_in_lists_and_have_their_methods_after_the_step() -> None:
    model = Model(take_step)
    model.several = [keras.optimizers.SGD(0.1)]
    build(model)
    found = find_optimizers(model)
    assert set(found) == {"optimizer", "second", "several"}
    assert all("apply" not in vars(optimizer) for optimizer in found.values())


def test_jacobian_and_watched_variables_are_those_of_keras() -> None:
    """They are computed in the step, from variables that are tensors there."""

    def step(model: Any, data: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            y_pred = model(data[0])
            loss = tf.reduce_mean((data[1] - y_pred) ** 2)
        watched = tape.watched_variables()
        jacobian = tape.jacobian(y_pred, model.dense.kernel)
        gradients = tape.gradient(loss, model.trainable_weights)
        scale = tf.reduce_sum(jacobian) / 100.0 * len(watched)
        model.optimizer.apply([g * scale for g in gradients], model.trainable_weights)
        return {"loss": loss}

    weights = []
    for fit in (keras.Model.fit, phalanx.fit):
        keras.utils.set_random_seed(1)
        model = Model(step)
        fit(model, X, Y, batch_size=5, verbose=0)
        weights.append(model.get_weights())
    for ours, theirs in zip(*weights, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-6)


@pytest.mark.parametrize(("setting", "value"), [("accumulate", 2), ("clip_norm", 1.0)])
def test_settings_that_do_not_fit_updates_in_place_are_refused(setting: str, value: Any) -> None:
    from phalanx.train.setting_checks import check_in_place

    step_function = build(Model(update_twice))
    config = phalanx.RunConfig(**{setting: value})
    with pytest.raises(ConfigurationError, match=f"{setting} is {value}, but train_step of Model"):
        check_in_place(config, step_function)


def test_parameter_servers_refuse_updates_in_place_by_name() -> None:
    from phalanx.train.setting_checks import check_fits_ps

    step_function = build(Model(update_twice))
    variables = step_function.make_host_variables()
    with pytest.raises(ConfigurationError, match=r"several times \(optimizer, second\)"):
        check_fits_ps(phalanx.RunConfig(), step_function, variables)


def test_random_numbers_without_a_seed_differ_from_step_to_step() -> None:
    seen: list[float] = []

    def step(model: Any, data: Any) -> Any:
        return {**take_step(model, data), "noise": tf.reduce_mean(keras.random.normal([4]))}

    class Note(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(logs["noise"])

    phalanx.fit(Model(step), X, Y, epochs=3, batch_size=10, verbose=0, callbacks=[Note()])
    assert len(set(seen)) == 3
