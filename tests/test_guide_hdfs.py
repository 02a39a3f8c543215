"""The examples of the HDFS guide run unchanged on a real HDFS."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers import hdfs

PAGE = Path(__file__).parents[1] / "docs" / "guide" / "hdfs.md"


@pytest.mark.slow
def test_examples_run_on_hdfs(tmp_path: Path) -> None:
    pytest.importorskip("hdfs_native", reason="not installed: pip install 'phalanx[hdfs]'")
    if why := hdfs.why_not():
        pytest.skip(why)
    text = PAGE.read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    commands = re.findall(r"```sh\n(phalanx .*?)```", text, re.DOTALL)
    assert blocks
    assert commands
    (tmp_path / "server").mkdir()
    with hdfs.running_hdfs(tmp_path / "server") as address:
        (tmp_path / "guide.py").write_text("".join(blocks).replace("hdfs://namenode:8020", address))
        typed = [f"{sys.executable} guide.py"] + [
            command.replace("phalanx", f"{sys.executable} -m phalanx", 1).replace(
                "hdfs://namenode:8020", address
            )
            for command in commands
        ]
        for line in typed:
            ran = subprocess.run(
                ["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert ran.returncode == 0, ran.stdout + ran.stderr
