"""The suite passes with every version of Keras that the package accepts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest

ROOT = Path(__file__).parents[2]
# The two newest minor versions that TensorFlow 2.21 accepts, as in pyproject.toml.
VERSIONS = ("3.14", "3.15")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("version", VERSIONS)
def test_results_equal_those_of_another_version(version: str, tmp_path: Path) -> None:
    if keras.__version__.startswith(f"{version}."):
        pytest.skip(f"Keras {version} is installed: the other tests use it")
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(tmp_path)]
    installed = subprocess.run(
        [*install, f"keras=={version}.*"], capture_output=True, text=True, check=False
    )
    if installed.returncode:
        pytest.skip(f"pip cannot install Keras {version}: {installed.stderr[-300:]}")
    environ = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    found = subprocess.run(
        [sys.executable, "-c", "import keras; print(keras.__version__)"],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.startswith(version)
    tests = ["tests/parity/test_one_process.py", "tests/parity/test_clusters.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=7000,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
