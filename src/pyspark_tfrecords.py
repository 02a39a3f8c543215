"""Registers `format("tfrecords")`, the old name: Spark takes one from each module."""

from phalanx.records.spark.source import TFRecordsSource as DefaultSource

__all__ = ["DefaultSource"]
