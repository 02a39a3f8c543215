"""Training and inference inside a Spark cluster.

    spark = SparkSession.builder.getOrCreate()
    result = phalanx.spark.run(Digits(), config, workers=2, ps=1)

The names are imported when they are first used, and PySpark and TensorFlow with them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.spark.dataframe import dataset
    from phalanx.spark.inference import predict_udf
    from phalanx.spark.mirrored import MirroredStrategyRunner
    from phalanx.spark.runner import run

_MODULES = {
    "MirroredStrategyRunner": "phalanx.spark.mirrored",
    "dataset": "phalanx.spark.dataframe",
    "predict_udf": "phalanx.spark.inference",
    "run": "phalanx.spark.runner",
}

__all__ = ["MirroredStrategyRunner", "dataset", "predict_udf", "run"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'phalanx.spark' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
