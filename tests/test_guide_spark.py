"""The examples of the Spark and Hadoop guides run unchanged."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "name",
    [
        "spark-records.md",
        "hadoop.md",
        pytest.param("spark-training.md", marks=pytest.mark.slow),
    ],
)
def test_python_examples_run(name: str, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'phalanx[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed, which Spark needs")
    if name == "hadoop.md" and not (ROOT / "java/build").exists():
        pytest.skip("the jar is not built: make jar")
    text = (ROOT / "docs/guide" / name).read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    (tmp_path / "guide.py").write_text("".join(blocks))
    (tmp_path / "java").symlink_to(ROOT / "java")
    ran = subprocess.run(
        [sys.executable, "guide.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
