"""The examples of the guides to TFRecord files and input pipelines run unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[1] / "docs" / "guide"


@pytest.mark.parametrize("name", ["records.md", "data.md"])
def test_python_examples_run(name: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (GUIDE / name).read_text(), re.DOTALL)
    assert blocks
    # TensorFlow reads the source of functions, so the program must be a file.
    (tmp_path / "guide.py").write_text("".join(blocks))
    ran = subprocess.run(
        [sys.executable, "guide.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
