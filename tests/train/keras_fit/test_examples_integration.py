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
# The epochs and examples of a short training, what each program prints at its end, and the range in
# which it then is: a guess has an accuracy of 25 % or 50 %, and gray images a loss of 177.
RESULTS = {
    "image_classification": ("8", "1200", r"test accuracy: ([\d.]+)%", 70, 100),
    "text_classification": ("3", "1000", r"validation accuracy: ([\d.]+)%", 90, 100),
    "variational_autoencoder": ("8", "600", r"before, ([\d.]+) after", 20, 100),
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
    epochs, examples, pattern, lowest, highest = RESULTS[name]
    environ = {**os.environ, "EPOCHS": epochs, "EXAMPLES": examples}
    environ.pop("TF_CONFIG", None)
    done = subprocess.run(
        [sys.executable, *SHAPES[shape], str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [found] = re.findall(pattern, done.stdout)
    assert lowest <= float(found) <= highest, done.stdout[-3000:]
