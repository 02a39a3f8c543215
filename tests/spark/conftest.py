"""A real Spark with executors of its own, for those tests that need it."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.processes import wait_for
from tests.servers.spark import stop_spark

from phalanx.spark.stage import count_slots

GPU_SCRIPT = """#!/bin/sh
echo '{"name": "gpu", "addresses": ["3", "7"]}'
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two executors with two slots each, all with two GPUs that are not there."""
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'phalanx[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed, which Spark needs")
    from pyspark.sql import SparkSession

    directory: Path = tmp_path_factory.mktemp("spark")
    script = directory / "gpus.sh"
    script.write_text(GPU_SCRIPT)
    script.chmod(0o755)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(directory),
        "spark.driver.resource.gpu.amount": "2",
        "spark.driver.resource.gpu.discoveryScript": str(script),
        "spark.worker.resource.gpu.amount": "2",
        "spark.worker.resource.gpu.discoveryScript": str(script),
        "spark.executor.resource.gpu.amount": "2",
        "spark.task.resource.gpu.amount": "1",
    }
    builder = SparkSession.builder.master("local-cluster[2,2,1024]")
    for name, text in settings.items():
        builder = builder.config(name, text)
    session = builder.getOrCreate()
    # On a busy machine the executors may take a while to start.
    wait_for(lambda: count_slots(session.sparkContext).total == 4)
    yield session
    stop_spark(session)
