"""The example: DataFrame, TFRecord files, a ps and two workers, predictions in a DataFrame."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "train.py"


@pytest.mark.slow
def test_example_trains_on_a_data_frame_and_predicts(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'phalanx[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed, which Spark needs")
    ran = subprocess.run(
        [sys.executable, EXAMPLE, "--master", "local[4]", "--dir", tmp_path / "run"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    accuracy = re.search(r"accuracy ([\d.]+)% on \d+ points, after 400 steps", ran.stdout)
    assert accuracy is not None, ran.stdout
    assert float(accuracy[1]) > 90
    assert re.search(r"^worker-1 \| ", ran.stdout, re.MULTILINE)
