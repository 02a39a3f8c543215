"""Training and inference inside a Spark cluster.

    spark = SparkSession.builder.getOrCreate()
    result = phalanx.spark.run(Digits(), config, workers=2, ps=1)

The names are imported when they are first used, and PySpark and TensorFlow with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.lazy_names import lazy_names

if TYPE_CHECKING:
    from phalanx.spark.dataframe import dataset as dataset
    from phalanx.spark.inference import predict_udf as predict_udf
    from phalanx.spark.mirrored import MirroredStrategyRunner as MirroredStrategyRunner
    from phalanx.spark.runner import run as run

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "phalanx.spark.dataframe": ("dataset",),
        "phalanx.spark.inference": ("predict_udf",),
        "phalanx.spark.mirrored": ("MirroredStrategyRunner",),
        "phalanx.spark.runner": ("run",),
    },
)
