"""Registers `format("tfrecord")`: Spark looks into every module called pyspark_ something."""

from phalanx.records.spark.source import TFRecordSource as DefaultSource

__all__ = ["DefaultSource"]
