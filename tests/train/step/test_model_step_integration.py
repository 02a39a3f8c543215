"""Models with a `train_step` of their own give the results of Keras on several replicas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.parity.table import TOLERANCE
from tests.train.programs import model_steps

PROGRAM = Path(model_steps.__file__)


def read_result(tasks: Any, name: str) -> Any:
    """Return what the chief printed for a model."""
    lines = tasks.log("chief-0").splitlines()
    [line] = [line for line in lines if line.startswith(f"RESULT {name} ")]
    return json.loads(line.removeprefix(f"RESULT {name} "))


def check_equals_keras(ours: Any, name: str, examples: int) -> None:
    """Train by `model.fit`, and compare. A metric counts batches, of which replicas have more."""
    model, data = model_steps.make_model(name), model_steps.make_data(examples)
    callbacks = [model_steps.HalveRate()]
    settings: dict[str, Any] = {"epochs": model_steps.EPOCHS, "verbose": 0, "callbacks": callbacks}
    history = model.fit(data, validation_data=data, **settings).history
    theirs = model_steps.read_variables(model)
    for a, b in zip(ours["variables"], theirs, strict=True):
        assert np.max(np.abs(np.subtract(a, b))) < TOLERANCE
    assert set(ours["history"]) == set(history)
    if not examples % 16:
        for key, values in history.items():
            assert ours["history"][key] == pytest.approx(values, abs=1e-4), key


@pytest.mark.parametrize(
    ("shape", "models", "examples", "flags"),
    [
        pytest.param(
            "c", ["vae", "gan"], 49, ["--devices-there=2", "--devices=CPU:0,CPU:1"],
            id="two devices, one without examples", marks=pytest.mark.slow,
        ),
        pytest.param("c w", ["vae", "gan"], 64, [], id="two workers", marks=pytest.mark.slow),
        pytest.param("c w", ["gan"], 49, [], id="two workers, one without examples",
                     marks=pytest.mark.slow),
        pytest.param("c w p", ["vae"], 64, ["--sync"], id="synchronous ps"),
        pytest.param("c w p", ["vae"], 64, ["--no-chief-trains"], id="asynchronous ps",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_model_steps_equal_keras_on_replicas(
    shape: str, models: list[str], examples: int, flags: list[str], start_cluster: Any
) -> None:
    arguments = ["--examples", str(examples), "--models", *models]
    tasks = start_cluster(shape, *flags, *arguments, program=PROGRAM)
    tasks.check()
    for name in models:
        check_equals_keras(read_result(tasks, name), name, examples)
