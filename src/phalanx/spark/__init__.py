"""Training and inference inside a Spark cluster.

    spark = SparkSession.builder.getOrCreate()
    result = phalanx.spark.run(Digits(), config, workers=2, ps=1)

The names are loaded when they are first used: neither PySpark nor TensorFlow is imported before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.spark.frames import dataset
    from phalanx.spark.inference import predict_udf
    from phalanx.spark.mirrored import MirroredStrategyRunner
    from phalanx.spark.runner import run

_HOME = {
    "MirroredStrategyRunner": "phalanx.spark.mirrored",
    "dataset": "phalanx.spark.frames",
    "predict_udf": "phalanx.spark.inference",
    "run": "phalanx.spark.runner",
}

__all__ = ["MirroredStrategyRunner", "dataset", "predict_udf", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'phalanx.spark' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
