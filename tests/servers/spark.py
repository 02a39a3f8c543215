"""A real Spark session, whose workers run this Python."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Any

import pytest


def start_spark(master: str = "local[2]", **settings: str) -> Any:
    """Start a session; skip the test if Spark is not installed."""
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install 'phalanx[spark]'")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java, which is not installed")
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


def stop_spark(session: Any) -> None:
    """Stop a session and its JVM, which would keep its class path and memory for the next one."""
    from pyspark import SparkContext

    session.stop()
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None
    assert gateway is not None
    gateway.shutdown()
    # The JVM ends at the end of its input.
    gateway.proc.stdin.close()
    gateway.proc.wait(60)
