"""The state of a model, such as averages, counters and frozen weights, with every engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "state.py"
STEPS = 100


def read_state(tasks: Any) -> Any:
    """Wait for the tasks, and return what the chief printed."""
    tasks.check()
    lines = tasks.log("chief-0").splitlines()
    [line] = [line for line in lines if line.startswith("STATE")]
    return json.loads(line.removeprefix("STATE "))


@pytest.mark.parametrize(
    ("shape", "flags"),
    [
        pytest.param(
            "c",
            ["--devices-there=2", "--devices=CPU:0,CPU:1"],
            id="two devices",
            marks=pytest.mark.slow,
        ),
        pytest.param("c w", [], id="two workers", marks=pytest.mark.slow),
        pytest.param("c w p", ["--sync"], id="synchronous ps", marks=pytest.mark.slow),
        pytest.param("c w p p", [], id="asynchronous ps"),
    ],
)
def test_state_is_exact_with_every_engine(
    shape: str, flags: list[str], start_cluster: Any, tmp_path: Path
) -> None:
    settings = ["--model-dir", str(tmp_path), "--train-steps", str(STEPS)]
    tasks = start_cluster(shape, *settings, *flags, program=PROGRAM)
    state = read_state(tasks)
    assert state["frozen is equal"]
    assert state["copies are equal"]
    assert state["called"]
    assert state["calls"] == state["step"] == STEPS
    assert state["last"] != 0
    assert state["mean"] == pytest.approx(3.0, abs=0.3)
    assert state["variance"] == pytest.approx(4.0, abs=1.0)


@pytest.mark.slow
def test_pass_with_backups_continues_until_every_trainer_has_read_its_data(
    start_cluster: Any, tmp_path: Path
) -> None:
    # The chief has 2 batches in each pass, the worker 30; each update takes the first gradient.
    flags = ["--model-dir", str(tmp_path), "--epochs", "2", "--sync", "--uneven"]
    tasks = start_cluster("c w p", *flags, "--replicas-to-aggregate", "1", program=PROGRAM)
    steps = read_state(tasks)["step"]
    # An update drops the gradient that comes second, at most twice in a pass.
    assert 2 * 28 <= steps <= 2 * 32
