"""Phalanx in one process computes what `model.fit` computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.parity.cases import BATCH, CASES, TOLERANCE, Case

import phalanx

EPOCHS = 2
SEED = 7


def start() -> None:
    keras.backend.clear_session()
    keras.utils.set_random_seed(SEED)


def train_with_keras(case: Case) -> tuple[Any, dict[str, float]]:
    start()
    model = case.make_model()
    model.fit(case.make_data(), epochs=EPOCHS, verbose=0, shuffle=False)
    return model, model.evaluate(case.make_data(), verbose=0, return_dict=True)


def train_with_phalanx(case: Case, directory: Path) -> tuple[Any, dict[str, float]]:
    start()
    experiment = phalanx.Experiment(
        model=case.make_model, train_data=case.make_data, eval_data=case.make_data
    )
    config = phalanx.RunConfig(model_dir=str(directory), epochs=EPOCHS, global_batch_size=BATCH)
    result = phalanx.run(experiment, config)
    return result.model, result.metrics


def distance(ours: list[Any], theirs: list[Any]) -> float:
    """The largest difference between two lists of variables."""
    pairs = [
        (np.asarray(a, "float64"), np.asarray(b, "float64"))
        for a, b in zip(ours, theirs, strict=True)
    ]
    return max(float(np.max(np.abs(a - b))) for a, b in pairs)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_results_equal_those_of_keras(case: Case, tmp_path: Path) -> None:
    theirs, their_metrics = train_with_keras(case)
    ours, our_metrics = train_with_phalanx(case, tmp_path)
    weights = distance(ours.variables, theirs.variables)
    if case.difference:
        assert weights > TOLERANCE, "this case no longer differs: remove its `difference`"
        return
    assert weights < TOLERANCE
    assert distance(ours.optimizer.variables, theirs.optimizer.variables) < TOLERANCE
    assert our_metrics == pytest.approx(their_metrics, abs=1e-4)
