"""Training a case with Keras or with Phalanx, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from tests.parity.table import REPLICATED, Case, Mode

import phalanx
from phalanx.train.step.optimizer_calls import find_optimizers

SEED = 7


@dataclass(frozen=True)
class Outcome:
    """What a training has left: arrays by name, and the history of each call of `fit`."""

    weights: dict[str, Any]
    optimizer: dict[str, Any]
    histories: list[dict[str, Any]]
    evaluation: dict[str, float]


def _start(case: Case) -> Any:
    keras.backend.clear_session()
    keras.utils.set_random_seed(SEED)
    return case.make_model()


_by_keras: dict[str, Outcome] = {}


def train_with_keras(case: Case) -> Outcome:
    """Train with `model.fit`, and evaluate with `model.evaluate`; each case only once."""
    if case.name not in _by_keras:
        _by_keras[case.name] = _train_with_keras(case)
    return _by_keras[case.name]


def _train_with_keras(case: Case) -> Outcome:
    def fit(model: Any, *data: Any, **arguments: Any) -> Any:
        return model.fit(*data, verbose=0, **arguments)

    model = _start(case)
    histories = case.train(fit, model)
    evaluation = None
    if case.evaluates:
        evaluation = model.evaluate(**case.evaluation_data(), verbose=0, return_dict=True)
    return _read(model, histories, evaluation)


def train_with_phalanx(case: Case, config: phalanx.RunConfig) -> Outcome:
    """Train with `phalanx.fit`, and evaluate with `phalanx.evaluate`, in this task's role."""
    options: dict[str, Any] = {"verbose": 0, "config": config, "exit_other_tasks": False}

    def fit(model: Any, x: Any, y: Any = None, **arguments: Any) -> Any:
        return phalanx.fit(model, x, y, **options, **arguments)

    model = _start(case)
    histories = case.train(fit, model)
    evaluation = None
    if case.evaluates:
        evaluation = phalanx.evaluate(model, **case.evaluation_data(), return_dict=True, **options)
    return _read(model, histories, evaluation)


def _read(model: Any, histories: list[Any], evaluation: dict[str, float] | None) -> Outcome:
    return Outcome(
        _by_name(model.variables),
        _by_name([v for o in find_optimizers(model).values() for v in o.variables]),
        [{"epoch": h.epoch, "steps": h.params.get("steps") or 0, **h.history} for h in histories],
        evaluation or {},
    )


def _by_name(variables: list[Any]) -> dict[str, Any]:
    return {f"{number} {v.path}": np.asarray(v.numpy()) for number, v in enumerate(variables)}


def compare(case: Case, mode: Mode, ours: Outcome, theirs: Outcome) -> None:
    """Raise an AssertionError that names what differs."""
    tolerance = max(case.tolerance, case.replica_tolerance if mode in REPLICATED else 0)
    problems = _compare_arrays(ours.weights, theirs.weights, tolerance)
    problems += _compare_arrays(ours.optimizer, theirs.optimizer, tolerance)
    for mine, other in zip(ours.histories, theirs.histories, strict=True):
        problems += _compare_values(mine, other, tolerance, case.evaluation)
    if case.evaluates and not case.evaluation:
        problems += _compare_values(ours.evaluation, theirs.evaluation, tolerance)
    if not case.differences.get(mode):
        assert not problems, "\n".join(problems)
        return
    assert problems, "this case no longer differs: remove what it says about this mode"
    for mine, other in zip(ours.histories, theirs.histories, strict=True):
        if "loss" in other:
            np.testing.assert_allclose(mine["loss"], other["loss"], atol=case.loss_tolerance)


def _compare_arrays(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float) -> list[str]:
    """Return what differs by more than a tolerance, absolute for small values."""
    if len(ours) != len(theirs):
        return [f"variables: {list(ours)} instead of {list(theirs)}"]
    problems = []
    for (name, array), mine_ in zip(theirs.items(), ours.values(), strict=True):
        mine, other = mine_.astype("float64"), array.astype("float64")
        if mine.shape != other.shape:
            problems.append(f"{name}: shape {mine.shape} instead of {other.shape}")
        elif not np.allclose(mine, other, rtol=tolerance, atol=tolerance, equal_nan=True):
            problems.append(f"{name} differs by {np.max(np.abs(mine - other)):.2g}")
    return problems


def _compare_values(
    ours: dict[str, Any], theirs: dict[str, Any], tolerance: float, evaluation: str = ""
) -> list[str]:
    if set(ours) != set(theirs):
        return [f"values: {sorted(ours)} instead of {sorted(theirs)}"]
    return [
        f"{name}: {ours[name]} instead of {values}"
        for name, values in theirs.items()
        if not (evaluation and name.startswith("val_"))
        and not np.allclose(
            ours[name], values, rtol=5 * tolerance, atol=5 * tolerance, equal_nan=True
        )
    ]
