"""With writeLocality=local, the jar for Spark deletes the files that its tasks cannot finish."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

JAR = Path(__file__).parents[2] / "java/build/phalanx-spark.jar"


def test_file_that_is_not_finished_is_deleted(tmp_path: Path) -> None:
    pyspark = pytest.importorskip("pyspark", reason="Spark is not installed")
    if shutil.which("javac") is None:
        pytest.skip("there is no Java compiler")
    if not JAR.exists():
        pytest.skip("the jar is not built: make jar")
    classes, out = tmp_path / "classes", tmp_path / "out"
    jars = f"{JAR}:{Path(pyspark.__file__).parent}/jars/*"
    source = Path(__file__).parent / "Abandoned.java"
    subprocess.run(["javac", "-cp", jars, "-d", classes, source], check=True, timeout=240)
    # No file may be larger than 8 blocks.
    limited = ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", "java", "-XX:-UsePerfData"]
    program = ["-cp", f"{classes}:{jars}", "phalanx.spark.Abandoned", str(out)]
    done = subprocess.run(
        [*limited, *program], capture_output=True, text=True, timeout=200, check=False
    )
    assert "File too large" in done.stdout, done.stdout + done.stderr
    assert "InterruptedIOException: the task is killed" in done.stdout, done.stdout + done.stderr
    assert list(out.iterdir()) == []
