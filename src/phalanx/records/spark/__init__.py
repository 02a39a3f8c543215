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

from typing import TYPE_CHECKING

from phalanx.lazy_names import lazy_names

if TYPE_CHECKING:
    from phalanx.records.spark.functions import count as count
    from phalanx.records.spark.functions import from_example as from_example
    from phalanx.records.spark.functions import load as load
    from phalanx.records.spark.functions import save as save
    from phalanx.records.spark.functions import to_example as to_example

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {"phalanx.records.spark.functions": ("count", "from_example", "load", "save", "to_example")},
)
