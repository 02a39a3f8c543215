"""The first program of the guides and the example programs run unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*command: str, cwd: Path) -> str:
    environment = {name: text for name, text in os.environ.items() if name != "TF_CONFIG"}
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_first_program_of_the_guide_trains_and_evaluates(tmp_path: Path) -> None:
    page = (ROOT / "docs/guide/one-process.md").read_text()
    program = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "digits.py").write_text(program)
    printed = run("digits.py", cwd=tmp_path)
    assert "Evaluation of step 100" in printed
    assert (tmp_path / "runs/digits/model.ckpt-100.index").exists()


@pytest.mark.parametrize(
    ("example", "shape", "shown"),
    [
        ("mnist", ["--workers", "2", "--ps", "1"], "on the test images"),
        pytest.param("custom_step", ["--workers", "1"], "at worst", marks=pytest.mark.slow),
        pytest.param("recommender", ["--workers", "2", "--ps", "2"], "AUC", marks=pytest.mark.slow),
    ],
)
def test_examples_train_on_a_local_cluster(
    example: str, shape: list[str], shown: str, tmp_path: Path
) -> None:
    program = str(ROOT / "examples" / example / "train.py")
    printed = run(
        "-m", "phalanx", "run", *shape, program, "--model-dir", "run", "--train-steps", "60",
        cwd=tmp_path,
    )  # fmt: skip
    assert shown in printed
    assert (tmp_path / "run/model.ckpt-60.index").exists()
