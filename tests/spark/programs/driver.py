"""A driver that is to be killed: its tasks write their numbers into a directory, and wait."""

import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import phalanx.spark


def train(directory: str) -> None:
    Path(directory, f"{os.getpid()}").touch()
    time.sleep(600)


if __name__ == "__main__":
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    builder.config("spark.ui.enabled", "false").getOrCreate()
    phalanx.spark.run(train, arguments={"directory": sys.argv[1]}, workers=1, wait_seconds=120)
