"""What Spark refuses a data source in Python: all save modes, partitions, a quick count."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from phalanx.errors import DataError
from phalanx.records.directory import path_exists, resolve

_MODES = {
    "error": "append",
    "errorifexists": "append",
    "ignore": "append",
    "append": "append",
    "overwrite": "overwrite",
}


def save(
    df: DataFrame,
    path: str,
    mode: str = "error",
    partition_by: Sequence[str] | str = (),
    **options: Any,
) -> None:
    """Write a DataFrame as TFRecord files, in any of the four modes.

        save(df, "hdfs://host/out", mode="overwrite", partition_by=["day"], codec="gzip")

    `error` writes nothing if the path is there, and says so; `ignore` writes nothing and goes on;
    `append` adds files; `overwrite` replaces all that is there once the new files are whole. The
    columns in `partition_by` become directories, as in `day=2026-01-31`, and columns again when
    the files are read. The options are those of `format("tfrecord")`.
    """
    wanted = _MODES.get(mode.lower())
    if wanted is None:
        raise DataError(f"the mode is {mode!r}: it can be error, ignore, append or overwrite")
    columns = [partition_by] if isinstance(partition_by, str) else list(partition_by)
    missing = [name for name in columns if name not in df.columns]
    if missing:
        raise DataError(f"there is no column {', '.join(missing)} to partition by: there are "
                        f"{', '.join(df.columns)}")  # fmt: skip
    target = resolve(path)
    if mode.lower() not in ("append", "overwrite") and path_exists(target):
        if mode.lower() == "ignore":
            return
        raise DataError(f"{path} is there already: choose another path, or the mode append, "
                        "overwrite or ignore")  # fmt: skip
    if columns:
        # A task has one file open at a time.
        df = df.sortWithinPartitions(*columns)
        options["partitionBy"] = json.dumps(columns)
    df.write.format("tfrecord").mode(wanted).options(**options).save(target)


def count(spark: SparkSession, paths: str | Sequence[str], **options: Any) -> int:
    """How many records files have, without a look into them.

        count(spark, "data/day=*")

    `df.count()` gives the same number, but Spark does not tell a data source in Python that it
    needs no column: it decodes them all.
    """
    reader = spark.read.format("tfrecord").schema(StructType([])).options(**options)
    return int(reader.load(paths).count())
