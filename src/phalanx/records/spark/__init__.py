"""TFRecord files as Spark tables.

    spark.read.format("tfrecord").load("data/*.tfrecord")       # nothing to import or register
    df.write.format("tfrecord").mode("overwrite").save("out")

    from phalanx.records.spark import count, from_example, load, save, to_example

    save(df, "out", mode="error", partition_by=["day"])         # what Spark's `save` cannot do
    load(spark, "out", where="day > '2026-01-01'")              # opens only matching files
    df.select(to_example("label", "pixels"))                    # rows as serialized Examples

The names are loaded on first use, because the modules beside them need no Spark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.records.spark.functions import count, from_example, load, save, to_example

__all__ = ["count", "from_example", "load", "save", "to_example"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'phalanx.records.spark' has no attribute {name!r}")
    try:
        found: object = getattr(import_module("phalanx.records.spark.functions"), name)
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        raise ImportError(
            f"phalanx.records.spark.{name} needs Spark, which is not installed: "
            "pip install 'phalanx[spark]'"
        ) from None
    globals()[name] = found
    return found
