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

from typing import TYPE_CHECKING

from phalanx.lazy_names import lazy_names

if TYPE_CHECKING:
    from phalanx.records.spark.functions import from_example as from_example
    from phalanx.records.spark.functions import to_example as to_example
    from phalanx.records.spark.tables import count as count
    from phalanx.records.spark.tables import load as load
    from phalanx.records.spark.tables import save as save

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "phalanx.records.spark.functions": ("from_example", "to_example"),
        "phalanx.records.spark.tables": ("count", "load", "save"),
    },
)
