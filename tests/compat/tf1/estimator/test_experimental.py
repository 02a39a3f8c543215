"""tf.estimator.experimental: hooks that end training by the results of evaluations."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Phalanx

from phalanx.compat.tf1.contrib import estimator as contrib_estimator
from phalanx.compat.tf1.estimator import (
    Estimator,
    EvalSpec,
    TrainSpec,
    experimental,
    train_and_evaluate,
)

PROGRAMS = Path(__file__).parents[3] / "programs/tf1"
EVERY_STEP: dict[str, Any] = {"run_every_secs": None, "run_every_steps": 1}


@pytest.mark.parametrize(
    ("make_hook", "last"),
    [
        # Checkpoints are evaluated after each 20 steps.
        (lambda model: experimental.stop_if_lower_hook(model, "loss", 1e9, **EVERY_STEP), 21),
        (lambda model: experimental.stop_if_higher_hook(model, "loss", 1e9, **EVERY_STEP), 80),
        (
            lambda model: contrib_estimator.stop_if_no_increase_hook(
                model, "loss", 20, min_steps=40, **EVERY_STEP
            ),
            61,
        ),
        (lambda model: experimental.stop_if_no_decrease_hook(model, "loss", 20, **EVERY_STEP), 80),
    ],
)
def test_training_ends_by_the_results_of_evaluations(
    make_estimator: Callable[..., Estimator],
    train_input: Any,
    eval_input: Any,
    make_hook: Callable[[Estimator], Any],
    last: int,
) -> None:
    model = make_estimator()
    spec = TrainSpec(train_input, max_steps=80, hooks=[make_hook(model)])
    train_and_evaluate(model, spec, EvalSpec(eval_input, steps=None, throttle_secs=0))
    assert model.saved_step() == last


def test_wrong_settings_are_described(
    make_estimator: Callable[..., Estimator], train_input: Any, eval_input: Any
) -> None:
    model = make_estimator()
    with pytest.raises(ValueError, match="both run_every_secs and run_every_steps are set"):
        experimental.make_early_stopping_hook(model, lambda: True, 60, 1)
    with pytest.raises(TypeError, match="should_stop_fn is True: pass a function"):
        experimental.make_early_stopping_hook(model, True)  # type: ignore[arg-type]
    hook = experimental.stop_if_lower_hook(model, "speed", 1, **EVERY_STEP)
    spec = TrainSpec(train_input, max_steps=80, hooks=[hook])
    with pytest.raises(ValueError, match=r"no metric 'speed': there are .*loss"):
        train_and_evaluate(model, spec, EvalSpec(eval_input, steps=None, throttle_secs=0))


@pytest.mark.slow
def test_all_tasks_end_when_the_chief_stops(phalanx: Phalanx, tmp_path: Path) -> None:
    program = PROGRAMS / "early_stopping.py"
    done = phalanx("run", "--tf1", "--ps=1", "--workers=1", program, tmp_path / "model")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is ended" not in done.stdout + done.stderr
    assert "worker 0 has trained" in done.stdout
    assert "master 0 has trained" in done.stdout
