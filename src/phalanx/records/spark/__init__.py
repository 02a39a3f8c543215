"""TFRecord files as Spark tables.

    spark.read.format("tfrecord").load("data/*.tfrecord")       # nothing to import or register
    df.write.format("tfrecord").mode("overwrite").save("out")

    from phalanx.records.spark import count, from_example, load, save, to_example

    save(df, "out", mode="error", partition_by=["day"])         # what Spark's `save` cannot
    load(spark, "out", where="day > '2026-01-01'")              # opens no other files
    df.select(to_example("label", "pixels"))                    # rows as messages, and back

The names are loaded when they are first used, so that the parts that need no Spark stay light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.records.spark.functions import from_example, to_example
    from phalanx.records.spark.tables import count, load, save

_HOME = {
    "count": "phalanx.records.spark.tables",
    "from_example": "phalanx.records.spark.functions",
    "load": "phalanx.records.spark.tables",
    "save": "phalanx.records.spark.tables",
    "to_example": "phalanx.records.spark.functions",
}

__all__ = ["count", "from_example", "load", "save", "to_example"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'phalanx.records.spark' has no attribute {name!r}")
    try:
        found = getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise ImportError(
            f"phalanx.records.spark.{name} needs Spark, which is not installed: "
            "pip install 'phalanx[spark]'"
        ) from None
    globals()[name] = found
    return found
