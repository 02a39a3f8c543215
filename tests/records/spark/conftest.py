"""A real Spark, for those tests that need it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

JAR = Path(__file__).parents[3] / "java" / "build" / "phalanx-hadoop.jar"


def start_spark(master: str, **settings: str) -> Any:
    """A session of its own, with workers that run this Python."""
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'phalanx[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed, which Spark needs")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(master)
    common = {
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g",
    }
    if JAR.exists():
        common["spark.jars"] = str(JAR)
    for name, text in {**common, **settings}.items():
        builder = builder.config(name, text)
    return builder.getOrCreate()


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """Two tasks at a time, in this process."""
    session = start_spark("local[2]")
    yield session
    session.stop()
