"""A real Spark, whose workers run this Python."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

import pytest


def start_spark(master: str = "local[2]", **settings: str) -> Any:
    """A session of its own; the test that asks for it is skipped where there is no Spark."""
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'phalanx[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed, which Spark needs")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    common = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.memory": "1g",
    }
    return SparkSession.builder.master(master).config(map={**common, **settings}).getOrCreate()
