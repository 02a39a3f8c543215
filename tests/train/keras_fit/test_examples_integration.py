"""The programs in examples/keras learn in one process and on clusters."""

from __future__ import annotations

import os
import re
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
# What each program prints at its end, and the range in which it is after a short training.
RESULTS = {
    "image_classification": (r"test accuracy: ([\d.]+)%", 0, 100),
    "text_classification": (r"validation accuracy: ([\d.]+)%", 90, 100),
    "variational_autoencoder": (r"brightness of the average image: ([\d.]+)", 0, 1),
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
def test_an_example_learns(name: str, shape: str, tmp_path: Path) -> None:
    size = ("3", "1000") if name == "text_classification" else ("2", "240")
    environ = {**os.environ, "EPOCHS": size[0], "EXAMPLES": size[1]}
    environ.pop("TF_CONFIG", None)
    done = subprocess.run(
        [sys.executable, *SHAPES[shape], str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    pattern, lowest, highest = RESULTS[name]
    [found] = re.findall(pattern, done.stdout)
    assert lowest <= float(found) <= highest, done.stdout[-3000:]
