"""The programs in examples/keras run in one process and on clusters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples/keras"
SHAPES = {
    "one process": [],
    "two workers": ["-m", "phalanx", "run", "--workers", "1"],
    "one ps, two workers": ["-m", "phalanx", "run", "--workers", "2", "--ps", "1"],
}
RESULTS = {
    "image_classification": "test accuracy",
    "text_classification": "validation accuracy",
    "variational_autoencoder": "brightness of the average image",
}
FAST = ("text_classification", "two workers")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param(name, shape, marks=[] if (name, shape) == FAST else pytest.mark.slow)
        for name in RESULTS
        for shape in SHAPES
    ],
)
def test_an_example_runs(name: str, shape: str, tmp_path: Path) -> None:
    environ = {**os.environ, "EPOCHS": "2", "EXAMPLES": "240"}
    environ.pop("TF_CONFIG", None)
    done = subprocess.run(
        [sys.executable, *SHAPES[shape], str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count(RESULTS[name]) == 1, done.stdout[-3000:]
