"""Registers `format("tfrecords")`: Spark looks into every module called pyspark_ something."""

import contextlib

# Where Arrow is missing, other data sources must still be found.
with contextlib.suppress(ModuleNotFoundError):
    from phalanx.records.spark.source import TFRecordsSource as DefaultSource

__all__ = ["DefaultSource"]
