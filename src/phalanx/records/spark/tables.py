"""What Spark refuses a data source in Python: all save modes, pruning, a quick count."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from phalanx.errors import DataError
from phalanx.records.directory import resolve
from phalanx.records.spark.dataset import find_dataset
from phalanx.records.spark.options import Options
from phalanx.records.spark.partitions import partition_types, partition_value
from phalanx.records.storage import exists

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
    mode = mode.lower()
    if mode not in _MODES:
        raise DataError(f"the mode is {mode!r}: it can be error, ignore, append or overwrite")
    columns = [partition_by] if isinstance(partition_by, str) else list(partition_by)
    missing = [name for name in columns if name not in df.columns]
    if missing:
        raise DataError(f"there is no column {', '.join(missing)} to partition by: there are "
                        f"{', '.join(df.columns)}")  # fmt: skip
    target = resolve(path)
    if mode not in ("append", "overwrite") and exists(target):
        if mode == "ignore":
            return
        raise DataError(f"{path} is there already: choose another path, or the mode append, "
                        "overwrite or ignore")  # fmt: skip
    if columns:
        # A task has one file open at a time.
        df = df.sortWithinPartitions(*columns)
        options["partitionBy"] = json.dumps(columns)
    df.write.format("tfrecord").mode(_MODES[mode]).options(**options).save(target)


def load(
    spark: SparkSession,
    path: str,
    where: str | None = None,
    schema: StructType | str | None = None,
    **options: Any,
) -> DataFrame:
    """Read a directory, and of its partitions only those for which `where` is true.

        load(spark, "hdfs://host/out", where="day >= '2026-01-01' AND country IN ('DE', 'FR')")

    `where` is SQL over the partition columns. Files in other directories are not opened, while
    `df.where(...)` reads them all: Spark does not tell a data source in Python in time.
    """
    reader = spark.read.format("tfrecord").options(**options)
    if schema is not None:
        reader = reader.schema(schema)
    if where is None:
        return reader.load(path)
    root = resolve(path)
    directories = _choose_directories(spark, root, where)
    if not directories:
        return reader.load(root).where("false")
    return reader.option("basePath", root).load(directories)


def _choose_directories(spark: SparkSession, root: str, where: str) -> list[str]:
    """Spark itself says for which directories the condition holds."""
    values = {file.path.rpartition("/")[0]: each for file, each in find_dataset(Options((root,)))}
    types = partition_types(values.values())
    rows = [
        (path, *(partition_value(name, each[name], type_).as_py() for name, type_ in types.items()))
        for path, each in values.items()
    ]
    # No column can have this name: it would be a directory in a directory.
    columns = from_arrow_schema(pa.schema([("a/path", pa.string()), *types.items()]))
    try:
        chosen = spark.createDataFrame(rows, columns).where(where).collect()
    except AnalysisException as error:
        raise DataError(f"where is {where!r}, and the partition columns of {root} are "
                        f"{', '.join(types) or 'none'}: {error}") from None  # fmt: skip
    return [row[0] for row in chosen]


def count(spark: SparkSession, paths: str | Sequence[str], **options: Any) -> int:
    """How many records files have, without a look into them.

        count(spark, "data/*.tfrecord")

    `df.count()` gives the same number, but Spark does not tell a data source in Python that it
    needs no column: it decodes them all.
    """
    reader = spark.read.format("tfrecord").schema(StructType([])).options(**options)
    return int(reader.load(paths).count())
