"""Experiment: which functions get the context, and whose optimizer is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest

import phalanx
from phalanx.errors import ConfigurationError
from phalanx.train.experiment import call, experiment_name, is_written, make_optimizer

CONTEXT = phalanx.Context(num_shards=3)


@pytest.mark.parametrize(
    ("function", "gets_context"),
    [
        (lambda: None, False),
        (lambda context: context, True),
        (lambda context=None: context, True),
        (lambda it: it, True),
        (lambda rate=0.1: None, False),
        (lambda *, rate=0.1: None, False),
    ],
)
def test_context_is_passed_to_functions_that_take_it(
    function: Callable[..., Any], gets_context: bool
) -> None:
    assert call(function, CONTEXT) is (CONTEXT if gets_context else None)


def test_functions_are_written_in_a_class_or_passed_as_arguments() -> None:
    class Derived(phalanx.Experiment):
        def train_step(self, model: Any, batch: Any) -> Any:
            return None

    assert is_written(Derived(), "train_step")
    assert not is_written(Derived(), "eval_step")
    assert is_written(phalanx.Experiment(eval_step=lambda model, batch: None), "eval_step")
    assert not is_written(phalanx.Experiment(), "eval_step")


def test_name_is_that_of_the_class_by_default() -> None:
    assert experiment_name(phalanx.Experiment()) == "Experiment"
    assert experiment_name(phalanx.Experiment(name="digits")) == "digits"


def test_optimizer_of_the_experiment_comes_before_that_of_the_model() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    with pytest.raises(ConfigurationError, match="Experiment has no optimizer: write optimizer"):
        make_optimizer(phalanx.Experiment(), model, CONTEXT)
    model.compile("sgd", "mse")
    assert make_optimizer(phalanx.Experiment(), model, CONTEXT) is model.optimizer
    scaled = phalanx.Experiment(
        optimizer=lambda context: keras.optimizers.Adam(context.num_shards / 10)
    )
    assert float(make_optimizer(scaled, model, CONTEXT).learning_rate) == pytest.approx(0.3)
    assert make_optimizer(phalanx.Experiment(optimizer="adam"), model, CONTEXT).name.startswith(
        "adam"
    )


def test_optimizer_that_is_in_use_is_rejected() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD()
    optimizer.build(model.trainable_variables)
    with pytest.raises(ConfigurationError, match=r"(?i)sgd\w* is already used by another model"):
        make_optimizer(phalanx.Experiment(optimizer=optimizer), model, CONTEXT)


@pytest.mark.parametrize(
    ("method", "reason"), [("model", "no model"), ("train_data", "no training")]
)
def test_missing_functions_are_named(method: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Experiment has {reason}"):
        call(getattr(phalanx.Experiment(), method), CONTEXT)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_optimizer_of_the_experiment_scales_the_loss_of_float16(policy: str) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.dtype_policy = keras.DTypePolicy(policy)
    experiment = phalanx.Experiment(optimizer=lambda: keras.optimizers.SGD(0.1))
    optimizer = make_optimizer(experiment, model, CONTEXT)
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    assert scales == (policy == "mixed_float16")
    assert float(optimizer.learning_rate) == pytest.approx(0.1)
    model.compile(keras.optimizers.SGD(), "mse", auto_scale_loss=False)
    assert make_optimizer(phalanx.Experiment(), model, CONTEXT) is model.optimizer


def test_optimizer_of_several_optimizers_is_rejected() -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    inner = keras.optimizers.SGD()
    experiment = phalanx.Experiment(
        optimizer=lambda: keras.optimizers.MultiOptimizer(lambda variable: inner)
    )
    with pytest.raises(ConfigurationError, match="the optimizer is a MultiOptimizer"):
        make_optimizer(experiment, model, CONTEXT)
