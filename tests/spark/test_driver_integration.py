"""What becomes of tasks whose driver is killed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.servers.processes import wait_for

PROGRAM = Path(__file__).parent / "programs" / "driver.py"


@pytest.mark.slow
def test_no_process_outlives_a_killed_driver(tmp_path: Path, environ: dict[str, str]) -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'phalanx[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed, which Spark needs")
    driver = subprocess.Popen(
        [sys.executable, PROGRAM, tmp_path],
        env={**environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(lambda: len(list(tmp_path.iterdir())) == 2 or driver.poll() is not None)
        assert driver.poll() is None
    finally:
        driver.kill()
        driver.wait()
    tasks = [path.name for path in tmp_path.iterdir()]
    wait_for(lambda: not any(Path("/proc", task).exists() for task in tasks))
